"""A graph whose nodes have features and classes: reads it from arrays or generates it, checks it, keeps it as the run's inputs.

Consumes `features.npy` [nodes, features], `edges.npy` [edges, 2] (each edge once, in any direction), `labels.npy` [nodes] (-1 for
none) and `splits.npy` [nodes] (0 train, 1 valid, 2 test, -1 for none), or the settings of a generated graph. Produces
`graph.safetensors`, and `about.json` with what is known of the best possible accuracy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from yatt_workloads.array_files import read_array, save_arrays
from yatt_workloads.initial_noise import initial_seed
from yatt_workloads.unimp.beliefs import posterior
from yatt_workloads.unimp.settings import BlockModel

Array = npt.NDArray[Any]
GRAPH = "graph.safetensors"
ABOUT = "about.json"
KNOWN_BEST = "known_best"
NO_LABEL = -1
SPLITS = ("train", "valid", "test")
NAMES = ("features", "edges", "labels", "splits")


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """The graph.

    features: [nodes, features], of 32 bits.
    sources, targets: ends of the edges, [2 * edges]: each edge in both directions, by target.
    labels, splits: [nodes]; labels of nodes without a split may be any.
    classes: of the train split, which has all of them.
    known_best: accuracy of the exact model on the test split; None if it is not known.
    """

    features: Array
    sources: Array
    targets: Array
    labels: Array
    splits: Array
    classes: int
    known_best: float | None

    def nodes(self, split: str) -> Array:
        """Returns the numbers of a split's nodes."""
        return np.flatnonzero(self.splits == SPLITS.index(split))


def write_graph_of(source: Path, folder: Path) -> None:
    """Checks the arrays in `source` and writes the run's inputs. Raises as `read_arrays` does."""
    _write(folder, read_arrays(source), None)


def read_arrays(source: Path) -> dict[str, Array]:
    """Returns the arrays in `source` by name. Raises `ValueError`, with file and node, for arrays that cannot be used."""
    arrays = {name: read_array(source / f"{name}.npy") for name in NAMES}
    _require_shapes(source, arrays)
    _require_values(source, arrays)
    return arrays


def _require_shapes(source: Path, arrays: dict[str, Array]) -> None:
    nodes = len(arrays["features"]) if arrays["features"].ndim else 0
    edges = len(arrays["edges"]) if arrays["edges"].ndim else 0
    width = arrays["features"].shape[-1] if arrays["features"].ndim == 2 else 1
    shapes = {"features": (nodes, width), "edges": (edges, 2), "labels": (nodes,), "splits": (nodes,)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape or not all(shape):
            found = list(arrays[name].shape)
            raise ValueError(
                f"{source / name}.npy: has shape {found}; expected {_expected(name)}, with at least one of each"
            )
        expected = "f" if name == "features" else "iu"
        if arrays[name].dtype.kind not in expected:
            kind = "floating-point numbers" if name == "features" else "integers"
            raise ValueError(f"{source / name}.npy: has numbers of type {arrays[name].dtype}; expected {kind}")


def _expected(name: str) -> str:
    nodes = "[nodes], for as many nodes as features.npy has"
    return {"features": "[nodes, features]", "edges": "[edges, 2]"}.get(name, nodes)


def _require_values(source: Path, arrays: dict[str, Array]) -> None:
    nodes = len(arrays["features"])
    labels = arrays["labels"]
    splits = arrays["splits"]
    broken = np.flatnonzero(~np.isfinite(_narrowed(arrays["features"])).all(axis=1))
    if len(broken):
        raise ValueError(
            f"{source}/features.npy: node {broken[0]} has a feature that is not finite as a number of 32 bits"
        )
    outside = np.flatnonzero(((arrays["edges"] < 0) | (arrays["edges"] >= nodes)).any(axis=1))
    if len(outside):
        ends = arrays["edges"][outside[0]].tolist()
        raise ValueError(f"{source}/edges.npy: edge {outside[0]} joins {ends}; expected nodes from 0 to {nodes - 1}")
    unknown = np.flatnonzero((splits < -1) | (splits >= len(SPLITS)))
    if len(unknown):
        raise ValueError(f"{source}/splits.npy: node {unknown[0]} has {splits[unknown[0]]}; expected -1, 0, 1 or 2")
    negative = np.flatnonzero(labels < NO_LABEL)
    if len(negative):
        raise ValueError(
            f"{source}/labels.npy: node {negative[0]} has {labels[negative[0]]}; expected -1 or a class from 0"
        )
    for number, split in enumerate(SPLITS):
        inside = np.flatnonzero(splits == number)
        without = inside[labels[inside] < 0]
        if len(without):
            raise ValueError(
                f"{source}/labels.npy: node {without[0]} is in the {split} split and has no label; give it one, or leave it out "
                "of the splits (-1)"
            )
        if not len(inside):
            raise ValueError(f"{source}/splits.npy: no node is in the {split} split; expected at least one")
    learnt = np.unique(labels[splits == 0])
    unlearnt = np.flatnonzero((splits > 0) & ~np.isin(labels, learnt))
    if len(unlearnt):
        raise ValueError(
            f"{source}/labels.npy: node {unlearnt[0]} has class {labels[unlearnt[0]]}, which has no node in the train split, so "
            "that it cannot be learnt"
        )
    if int(learnt[-1]) != len(learnt) - 1:
        raise ValueError(
            f"{source}/labels.npy: the train split has {len(learnt)} classes, up to {learnt[-1]}; expected them to be numbered "
            "from 0 without a gap"
        )


def _narrowed(features: Array) -> Array:
    """Returns features as the network gets them: what is too large for 32 bits becomes infinite."""
    with np.errstate(over="ignore"):
        return features.astype(np.float32)


@dataclass(frozen=True, eq=False)
class GeneratedNodes:
    """The nodes of a stochastic block model. centres: of the classes, [classes, features]; the rest as in `NodeGraph`."""

    features: Array
    labels: Array
    splits: Array
    centres: Array


def generated_nodes(settings: BlockModel, seed: int) -> GeneratedNodes:
    """Returns all of a generated graph but its edges, which take most of the time.

    Raises `ValueError` for splits in which a class cannot be learnt or nothing can be evaluated.
    """
    noise = np.random.default_rng(initial_seed(seed, "nodes"))
    nodes = settings.nodes
    labels = noise.integers(settings.classes, size=nodes)
    centres = settings.signal * noise.normal(size=(settings.classes, settings.features))
    features = _narrowed(centres[labels] + noise.normal(size=(nodes, settings.features)))
    order = noise.permutation(nodes)
    splits = np.full(nodes, 2)
    splits[order[: round(nodes * settings.train)]] = 0
    splits[order[round(nodes * settings.train) : round(nodes * (settings.train + settings.valid))]] = 1
    for number, split in enumerate(SPLITS):
        if not (splits == number).any():
            raise ValueError(f"generated: no node is in the {split} split; expected more nodes, or other shares")
    learnt = len(np.unique(labels[splits == 0]))
    if learnt < settings.classes:
        raise ValueError(
            f"generated: {settings.classes - learnt} of {settings.classes} classes have no node in the train split, so that they "
            "cannot be learnt; expected more nodes, fewer classes or a larger share of training nodes"
        )
    if not np.isfinite(features).all():
        raise ValueError("generated: a feature is not finite as a number of 32 bits; expected a smaller signal")
    return GeneratedNodes(features, labels, splits, centres)


def write_generated(settings: BlockModel, seed: int, folder: Path) -> None:
    """Writes a graph of a stochastic block model, with the accuracy of belief propagation under its true parameters.

    Raises as `generated_nodes` does.
    """
    drawn = generated_nodes(settings, seed)
    labels = drawn.labels
    nodes = settings.nodes
    noise = np.random.default_rng(initial_seed(seed, "edges"))
    within = settings.within * settings.classes / nodes
    across = settings.across * settings.classes / (settings.classes - 1) / nodes
    chance = np.where(labels[:, None] == labels[None], within, across)
    edges = np.stack(np.nonzero(np.triu(noise.random((nodes, nodes)) < chance, 1)), axis=1)
    arrays: dict[str, Array] = {
        "features": drawn.features,
        "edges": edges,
        "labels": labels,
        "splits": drawn.splits,
    }
    chances = np.full((settings.classes, settings.classes), across)
    np.fill_diagonal(chances, within)
    sources, targets = _both_ways(edges)
    found = posterior(
        features=drawn.features,
        centres=drawn.centres,
        labels=np.where(drawn.splits == 0, labels, NO_LABEL),
        sources=sources,
        targets=targets,
        chances=chances,
    ).argmax(axis=1)
    _write(folder, arrays, float((found == labels)[drawn.splits == 2].mean()))


def _both_ways(edges: Array) -> tuple[Array, Array]:
    """Returns sources and targets of edges in both directions, without loops and doubles, by target."""
    ends = np.concatenate([edges, edges[:, ::-1]]).astype(np.int64)
    ends = np.unique(ends[ends[:, 0] != ends[:, 1]][:, ::-1], axis=0)
    return ends[:, 1].copy(), ends[:, 0].copy()


def _write(folder: Path, arrays: dict[str, Array], known_best: float | None) -> None:
    sources, targets = _both_ways(arrays["edges"])
    columns = {
        "features": _narrowed(arrays["features"]),
        "sources": sources,
        "targets": targets,
        "labels": arrays["labels"].astype(np.int64),
        "splits": arrays["splits"].astype(np.int64),
    }
    save_arrays(columns, folder / GRAPH)
    (folder / ABOUT).write_text(json.dumps({KNOWN_BEST: known_best}) + "\n", encoding="utf-8")


def read_graph(folder: Path) -> NodeGraph:
    """Reads the run's inputs."""
    columns = load_file(folder / GRAPH)
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    learnt = columns["labels"][columns["splits"] == 0]
    return NodeGraph(**columns, classes=int(learnt.max()) + 1, known_best=about[KNOWN_BEST])
