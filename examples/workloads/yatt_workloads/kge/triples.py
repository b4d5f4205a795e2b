"""A knowledge graph: reads it from text files or generates it, checks it, and keeps it as the run's inputs.

Consumes `train.txt`, `valid.txt` and `test.txt`, or the settings of a generated graph; produces `graph.safetensors` with the
three splits as numbers, and the names of entities and relations, a line each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from yatt_workloads.array_files import save_arrays
from yatt_workloads.kge.settings import GeneratedGraph
from yatt_workloads.text_lines import lines_of

Triples = npt.NDArray[np.int64]
"""Heads, relations and tails: [triples, 3]."""

TRAIN = "train"
SPLITS = (TRAIN, "valid", "test")
GRAPH = "graph.safetensors"
ENTITIES = "entities.txt"
RELATIONS = "relations.txt"


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """The splits, and the names of entities and relations by number."""

    train: Triples
    valid: Triples
    test: Triples
    entity_names: tuple[str, ...]
    relation_names: tuple[str, ...]

    @property
    def entities(self) -> int:
        """How many entities there are."""
        return len(self.entity_names)

    @property
    def relations(self) -> int:
        """How many relations there are."""
        return len(self.relation_names)

    @property
    def known(self) -> Triples:
        """All triples: the true ones that a ranking leaves out."""
        return np.concatenate([self.train, self.valid, self.test])


def write_graph_of(source: Path, folder: Path) -> None:
    """Checks the text files in `source` and writes the run's inputs. Raises as `read_triples` does."""
    splits, numbers = read_triples(source)
    _write(folder, splits, numbers)


def read_triples(source: Path) -> tuple[dict[str, Triples], tuple[dict[str, int], ...]]:
    """Returns the triples of the text files in `source` by split, and the numbers of entities' and of relations' names.

    Raises `ValueError`, with file and line, for what is no triple; for an entity or a relation of the other splits that no
    training triple has, which nothing could be learnt about; and for a triple that stands there twice, in one split or in two.
    """
    numbers: tuple[dict[str, int], ...] = ({}, {})
    splits: dict[str, list[tuple[int, int, int]]] = {name: [] for name in SPLITS}
    seen: dict[tuple[int, int, int], str] = {}
    for split in SPLITS:
        for place, head, relation, tail in _triples(source / f"{split}.txt"):
            entities, relations = numbers
            triple = (
                _number(numbers=entities, name=head, kind="entity", split=split, place=place),
                _number(numbers=relations, name=relation, kind="relation", split=split, place=place),
                _number(numbers=entities, name=tail, kind="entity", split=split, place=place),
            )
            if triple in seen:
                raise ValueError(f"{place}: this triple is in {seen[triple]}.txt already; expected it once")
            seen[triple] = split
            splits[split].append(triple)
    for split, found in splits.items():
        if not found:
            raise ValueError(f"{source / split}.txt: is empty; expected at least one triple")
    return {name: np.array(found, np.int64) for name, found in splits.items()}, numbers


def _triples(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yields the place of each triple, its head, relation and tail."""
    for place, line in lines_of(path):
        parts = line.split("\t")
        if len(parts) != 3 or not all(part.strip() for part in parts):
            raise ValueError(f"{place}: expected head, relation and tail, separated by tabs (given: {line[:80]!r})")
        yield place, parts[0], parts[1], parts[2]


def _number(numbers: dict[str, int], name: str, kind: str, split: str, place: str) -> int:
    """Returns the number of a name; a new name gets one in the training split only."""
    if split != TRAIN and name not in numbers:
        raise ValueError(
            f"{place}: the {kind} {name!r} is in no training triple, so that nothing can be learnt about it; leave the triple "
            "out, or train on another one with it"
        )
    return numbers.setdefault(name, len(numbers))


def write_generated(settings: GeneratedGraph, seed: int, folder: Path) -> None:
    """Writes a generated graph as the run's inputs. Raises as `generated_triples` does."""
    names = (
        {f"entity {number}": number for number in range(settings.entities)},
        {f"relation {number}": number for number in range(settings.relations)},
    )
    _write(folder, generated_triples(settings, seed), names)


def generated_triples(settings: GeneratedGraph, seed: int) -> dict[str, Triples]:
    """Returns the triples of a generated graph by split: its best MRR is 1.

    Raises `ValueError` for a graph of which no training triple has some entity or relation.
    """
    noise = np.random.default_rng(seed)
    turns = noise.choice(np.arange(1, settings.entities), settings.relations, replace=False)
    heads = np.tile(np.arange(settings.entities), settings.relations)
    relations = np.repeat(np.arange(settings.relations), settings.entities)
    triples = np.stack([heads, relations, (heads + turns[relations]) % settings.entities], axis=1)
    order = noise.permutation(len(triples))
    held_out = max(1, int(settings.held_out * len(triples)))
    parts = {
        "valid": triples[order[:held_out]],
        "test": triples[order[held_out : 2 * held_out]],
        TRAIN: triples[order[2 * held_out :]],
    }
    train = parts[TRAIN]
    if len(np.unique(train[:, [0, 2]])) < settings.entities or len(np.unique(train[:, 1])) < settings.relations:
        raise ValueError(
            "generated: a name is left without a training triple; expected more relations, or less held out"
        )
    return parts


def _write(folder: Path, splits: Mapping[str, Triples], numbers: tuple[dict[str, int], ...]) -> None:
    save_arrays(splits, folder / GRAPH)
    for name, known in zip((ENTITIES, RELATIONS), numbers, strict=True):
        (folder / name).write_text("".join(f"{each}\n" for each in known), encoding="utf-8")


def read_graph(folder: Path) -> KnowledgeGraph:
    """Reads the run's inputs."""
    splits = load_file(folder / GRAPH)
    return KnowledgeGraph(
        **{name: splits[name] for name in SPLITS},
        entity_names=_names(folder / ENTITIES),
        relation_names=_names(folder / RELATIONS),
    )


def _names(path: Path) -> tuple[str, ...]:
    """Returns the lines of a file. Only a newline ends a line: a name may have any other character."""
    return tuple(path.read_bytes().decode("utf-8").split("\n")[:-1])
