"""Reads a spec's sources and parts their prompts into held-out, probe and training ones.

Consumes `DataSpec` and the spec's seed; produces `Collection`. The parts never share a question, compared in lower case and
without surrounding white space, also between sources; held-out and probe prompts are distinct, and training prompts keep
whatever repetitions their source has.

reasoning-gym draws entry i from Random(seed + i), so nearby seeds give the same data shifted by one: held-out and
training seeds lie millions apart. The held-out seed is fixed, so that runs of every spec seed are measured on the same tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from yatt_core.data import jsonl
from yatt_core.data.prompts import Prompt, apportion
from yatt_core.errors import ConfigurationError
from yatt_core.spec.data import DataSpec, JsonlSource, ReasoningGymSource, Source

HELD_OUT_SEED = 10_000_000
TRAIN_SEED, TRAIN_SEED_STRIDE = 20_000_000, 1_000_000
DRAWS_PER_HELD_OUT = 10
"""How many entries of a generated source may be looked at for each distinct held-out prompt."""


@dataclass(frozen=True, slots=True)
class Collection:
    """All prompts of a run. train: by source, in the source's order."""

    train: tuple[tuple[Prompt, ...], ...]
    held_out: tuple[Prompt, ...]
    probe: tuple[Prompt, ...]
    images: Mapping[str, Path]
    """The files of the prompts' images by content address."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row before it is known which part it belongs to. origin: split, file or task, and row. images: address and file."""

    origin: str
    text: str
    answer: str | None
    entry: dict[str, Any]
    images: tuple[tuple[str, Path], ...] = ()

    @property
    def question(self) -> str:
        return " ".join([normalise(self.text), *(address for address, _ in self.images)])

    def prompt(self, source: int, index: int) -> Prompt:
        media = tuple(address for address, _ in self.images)
        return Prompt(source, index, f"{source}/{self.origin}", self.text, self.answer, self.entry, media)


def normalise(text: str) -> str:
    """A question as it is compared between training and held-out prompts."""
    return text.strip().lower()


def source_label(source: Source) -> str:
    """What a source is called in prompt ids and messages: its task, or its file's name."""
    return source.task if isinstance(source, ReasoningGymSource) else Path(source.path).name


def collect_prompts(data: DataSpec, seed: int) -> Collection:
    """All prompts of a run.

    Raises `ConfigurationError` for an unknown task or file and for sources that have too few prompts, `DataError` for a row
    that cannot be used.
    """
    weights = [source.weight for source in data.sources]
    questions: set[str] = set()
    images: dict[str, Path] = {}
    held_out: list[Prompt] = []
    for number, share in enumerate(apportion(data.held_out, weights)):
        rows = _held_out_rows(data.sources[number], share)
        taken = _take_distinct(rows, share, questions)
        _check_enough("held_out", data, number, share, len(taken))
        held_out += [row.prompt(number, index) for index, row in enumerate(taken)]
        images |= dict(image for row in taken for image in row.images)

    pools = [_without(_train_rows(source, seed), questions) for source in data.sources]
    images |= dict(image for pool in pools for row in pool for image in row.images)
    probe_questions: set[str] = set()
    probe: list[Prompt] = []
    for number, share in enumerate(apportion(data.probe, weights)):
        taken = _take_distinct(pools[number], share, probe_questions)
        _check_enough("probe", data, number, share, len(taken))
        probe += [row.prompt(number, index) for index, row in enumerate(taken)]

    train = []
    for number, pool in enumerate(pools):
        rest = _without(pool, probe_questions)
        if not rest:
            raise ConfigurationError(
                f"data.sources.{number} ({source_label(data.sources[number])}): none of its {len(pool)} prompts that are not "
                f"held out are left for training after data.probe ({data.probe}); add rows or lower data.probe"
            )
        train.append(tuple(row.prompt(number, index) for index, row in enumerate(rest)))
    return Collection(tuple(train), tuple(held_out), tuple(probe), images)


def _take_distinct(rows: Iterable[_Row], count: int, taken: set[str]) -> list[_Row]:
    """The first rows whose questions were not taken yet; adds theirs."""
    chosen: list[_Row] = []
    if not count:
        return chosen
    for row in rows:
        if row.question not in taken:
            taken.add(row.question)
            chosen.append(row)
            if len(chosen) == count:
                break
    return chosen


def _without(rows: Iterable[_Row], questions: set[str]) -> list[_Row]:
    return [row for row in rows if row.question not in questions]


def _check_enough(part: Literal["held_out", "probe"], data: DataSpec, number: int, share: int, found: int) -> None:
    if found < share:
        remedy = "widen the task's options" if isinstance(data.sources[number], ReasoningGymSource) else "add rows"
        raise ConfigurationError(
            f"data.{part}: {share} of the {getattr(data, part)} prompts are to come from data.sources.{number} "
            f"({source_label(data.sources[number])}), which has only {found} distinct ones left; "
            f"lower data.{part} or {remedy}"
        )


def _held_out_rows(source: Source, count: int) -> Iterator[_Row]:
    """Rows that may be held out, best first; without a file of its own, a JSON Lines source gives them from its end."""
    if isinstance(source, ReasoningGymSource):
        return _gym_rows(source, "held_out", HELD_OUT_SEED, count * DRAWS_PER_HELD_OUT)
    if source.held_out_path is not None:
        return _jsonl_rows(source, "held_out", Path(source.held_out_path))
    return reversed(list(_jsonl_rows(source, "train", Path(source.path))))


def _train_rows(source: Source, seed: int) -> Iterator[_Row]:
    if isinstance(source, ReasoningGymSource):
        return _gym_rows(source, "train", TRAIN_SEED + TRAIN_SEED_STRIDE * seed, source.size)
    return _jsonl_rows(source, "train", Path(source.path))


def _gym_rows(source: ReasoningGymSource, split: str, seed: int, size: int) -> Iterator[_Row]:
    from yatt_core.data import gym  # takes a second, and only who makes the inputs needs it

    for index, entry in enumerate(gym.entries(source.task, source.options, seed, size)):
        answer = None if entry["answer"] is None else str(entry["answer"])
        yield _Row(f"{split}/{source.task}:{index}", entry["question"], answer, entry)


def _jsonl_rows(source: JsonlSource, split: str, path: Path) -> Iterator[_Row]:
    for number, entry in jsonl.read_rows(path, source):
        text, answer = entry[source.prompt_field], entry.get(source.answer_field)
        images = jsonl.images_of(entry, f"{path}:{number}", source.image_field, path.parent)
        yield _Row(f"{split}/{path.name}:{number}", text, answer, entry, images)
