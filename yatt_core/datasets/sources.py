"""Reads a spec's sources and divides their prompts into held-out, probe and training prompts.

Consumes `DataSpec` and the spec's seed. Produces a `Collection`. The parts never share a task, even across sources;
two prompts are the same task if they have the same images and tools, and the same question up to case and surrounding
white space. Held-out and probe prompts are distinct; training prompts keep the repetitions of their source. Sources are
read row by row, several times; only the held-out and probe prompts are held in memory.

reasoning-gym draws entry i from Random(seed + i), so nearby seeds yield the same data shifted by one: held-out
and training seeds are millions apart. The held-out seed is fixed, so that runs of all spec seeds are evaluated
on the same tasks.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from yatt_core.datasets.kept_rows import KeptRows
from yatt_core.datasets.rows import Keep, Row, read_rows, splits_of
from yatt_core.digests import canonical_json
from yatt_core.errors import ConfigurationError
from yatt_core.problems import Problems
from yatt_core.prompts.media import verified_address
from yatt_core.prompts.stream import Prompt, apportion
from yatt_core.spec.sections.data import (
    MOST_HELD_OUT,
    MOST_PROBE,
    PART_OF_DATA,
    DataSpec,
    FileSource,
    HubSource,
    ReasoningGymSource,
    Source,
)

HELD_OUT_SEED = 10_000_000
TRAIN_SEED = 20_000_000
TRAIN_SEED_STRIDE = 1_000_000
DRAWS_PER_HELD_OUT = 10
"""Maximum number of entries of a generated source examined per distinct held-out prompt."""
LOOKED_OVER = 10_000
HEAVY_LOOKED_OVER = 500
"""Number of rows of a file source that are checked before a run starts; heavy rows have images."""


@dataclass(slots=True)
class LeftOut:
    """What the last complete pass over a source's rows has left out.

    rows: number of rows whose tasks are held out or in the probe, those that are there themselves included.
    of: number of all rows.
    """

    rows: int = 0
    of: int = 0


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """The training prompts of a source, in its order; they come anew on every pass and are never held in memory.

    held_out, probe: keys of the excluded tasks.
    left_out: changes with each pass.

    Iterating raises as `collect_prompts` does.
    """

    data: DataSpec
    seed: int
    number: int
    held_out: Set[bytes]
    probe: Set[bytes]
    rows: KeptRows = field(compare=False)
    left_out: LeftOut = field(default_factory=LeftOut, compare=False)

    def __iter__(self) -> Iterator[Prompt]:
        source = self.data.sources[self.number]
        pool = index = of = 0
        for row in self.rows:
            of += 1
            if (key := task_key(row)) in self.held_out:
                continue
            pool += 1
            if key not in self.probe:
                yield _prompt(row, self.number, index)
                index += 1
        self.left_out.rows = of - index
        self.left_out.of = of
        if not index:
            raise ConfigurationError(
                f"data.sources.{self.number} ({source_label(source)}): none of its {pool} prompts that are not held "
                f"out remains for training after data.probe ({len(self.probe)}); add rows or lower data.probe"
            )


@dataclass(frozen=True, slots=True)
class Collection:
    """All prompts of a run.

    train: the training prompts of each source.
    """

    train: tuple[TrainingPrompts, ...]
    held_out: tuple[Prompt, ...]
    probe: tuple[Prompt, ...]


def normalise(text: str) -> str:
    """Returns a question in the form used to compare training and held-out prompts."""
    return text.strip().lower()


def task_key(row: Row) -> bytes:
    """Returns the 32 bytes that identify a task: a hash of its question, images and tools.

    The question of a conversation is its transcript, system message included; a text that is learnt as a whole is its own.
    """
    tools = (canonical_json([dict(tool) for tool in row.tools]),) if row.tools else ()
    parts = (str(len(row.media)), *row.media, normalise(row.text or row.answer or ""), *tools)
    return hashlib.sha256("\0".join(parts).encode()).digest()


def source_label(source: Source) -> str:
    """Returns the name of a source in messages: its task, or its file name."""
    match source:
        case ReasoningGymSource():
            return source.task
        case HubSource():
            return source.repo
        case _:
            return Path(source.path).name


def source_place(data: DataSpec, number: int) -> str:
    """Returns the key of a source in the spec, with its task or path."""
    source = data.sources[number]
    named = source_label(source) if isinstance(source, ReasoningGymSource | HubSource) else source.path
    return f"data.sources.{number} ({named})"


def collect_prompts(data: DataSpec, seed: int, keep: Keep = verified_address, with_probe: bool = True) -> Collection:
    """Returns all prompts of a run.

    keep: receives each image of a row that is read.
    with_probe: whether the run needs probe prompts if `data.probe` does not say how many.

    Raises `ConfigurationError` for an unknown task or file and for sources with too few prompts, and
    `DataError` for a row that cannot be used.
    """
    weights = [source.weight for source in data.sources]
    rows = [KeptRows(partial(_train_rows, source, seed, keep)) for source in data.sources]
    held_out_keys: set[bytes] = set()
    held_out: list[Prompt] = []
    for number, most in enumerate(apportion(data.most_held_out, weights)):
        source = data.sources[number]
        share = most
        if data.held_out is None and not has_held_out_files(source):
            share = _part_of(rows[number], most)
        taken = _held_out(source=source, share=share, taken=held_out_keys, keep=keep, train=rows[number])
        _check_enough(
            part="held_out", data=data, number=number, share=share if data.held_out else min(share, 1), found=len(taken)
        )
        held_out += [_prompt(row, number, index) for index, row in enumerate(taken)]

    probe_keys: set[bytes] = set()
    probe: list[Prompt] = []
    all_probe = data.probe if data.probe is not None else MOST_PROBE if with_probe else 0
    for number, most in enumerate(apportion(all_probe, weights)):
        source = data.sources[number]
        share = most
        if data.probe is None:
            share = _part_of(_without(rows[number], held_out_keys), most)
        taken = _take_distinct(_without(rows[number], held_out_keys), share, probe_keys)
        _check_enough(
            part="probe", data=data, number=number, share=share if data.probe else min(share, 1), found=len(taken)
        )
        probe += [_prompt(row, number, index) for index, row in enumerate(taken)]

    train = [
        TrainingPrompts(data=data, seed=seed, number=number, held_out=held_out_keys, probe=probe_keys, rows=kept)
        for number, kept in enumerate(rows)
    ]
    return Collection(tuple(train), tuple(held_out), tuple(probe))


def rows_left_out(data: DataSpec, collection: Collection) -> Iterator[str]:
    """Yields a line for each file source of whose rows some are not trained on, because an equal prompt is kept apart.

    collection: its training prompts have been passed over.
    """
    for number, (source, train) in enumerate(zip(data.sources, collection.train, strict=True)):
        if not isinstance(source, FileSource):
            continue
        repeated = train.left_out.rows - sum(prompt.source == number for prompt in collection.probe)
        if not has_held_out_files(source):
            repeated -= sum(prompt.source == number for prompt in collection.held_out)
        if repeated:
            yield (
                f"{source_place(data, number)}: {repeated:,} of {train.left_out.of:,} rows are left out of training, because "
                "their prompts are equal to held-out or probe prompts"
            )


def all_tasks(source: Source, number: int, most: int | None, keep: Keep = verified_address) -> list[Prompt]:
    """Returns the distinct tasks of a source from which nothing is trained: its held-out rows if it names any, else all.

    number: the source's among the prompts.
    most: maximum number of tasks; None: all of a file, `MOST_HELD_OUT` of a generated source.

    Raises as `collect_prompts` does.
    """
    if isinstance(source, ReasoningGymSource):
        most = MOST_HELD_OUT if most is None else most
        rows = _gym_rows(source, "held_out", HELD_OUT_SEED, most * DRAWS_PER_HELD_OUT)
    else:
        rows = read_rows(source, "held_out" if has_held_out_files(source) else "train", keep)
    taken = _take_distinct(rows, sys.maxsize if most is None else most, set())
    return [_prompt(row, number, index) for index, row in enumerate(taken)]


def first_prompts(data: DataSpec, seed: int, count: int) -> list[Prompt]:
    """Returns the first rows of each source as prompts, at most `count` of each. Raises as `collect_prompts` does."""
    return [
        _prompt(row, number, index)
        for number, source in enumerate(data.sources)
        for index, row in enumerate(itertools.islice(_train_rows(source, seed, verified_address), count))
    ]


def first_answerless(data: DataSpec, seed: int) -> list[Prompt]:
    """Returns the first prompt without a reference answer of each file source, if it is among the rows looked over.

    Raises as `collect_prompts` does.
    """
    found = []
    for number, source in enumerate(data.sources):
        if isinstance(source, FileSource):
            rows = enumerate(itertools.islice(_train_rows(source, seed, verified_address), LOOKED_OVER))
            found += [_prompt(row, number, index) for index, row in rows if row.answer is None][:1]
    return found


def look_over(data: DataSpec, seed: int, with_probe: bool = True) -> bool:
    """Checks the first rows of every file source; if these are all rows, also divides them into parts.

    with_probe: as for `collect_prompts`.

    Errors in the files are thus reported before anything is started, and the time does not depend on the files' size.
    Returns True if all rows were read. Raises as `collect_prompts` does.
    """
    whole = True
    problems = Problems()
    for source in data.sources:
        if isinstance(source, FileSource):
            most = LOOKED_OVER if source.image_field is None else HEAVY_LOOKED_OVER
            with problems.noting():
                for split in splits_of(source):
                    rows = itertools.islice(read_rows(source, split, verified_address), most + 1)
                    whole &= sum(1 for _ in rows) <= most
    problems.raise_any()
    if whole:
        collection = collect_prompts(data, seed, with_probe=with_probe)
        for source, prompts in zip(data.sources, collection.train, strict=True):
            if isinstance(source, FileSource):
                deque(prompts, maxlen=0)
    return whole


def _prompt(row: Row, source: int, index: int) -> Prompt:
    return Prompt(
        source=source,
        index=index,
        prompt_id=f"{source}/{row.origin}",
        text=row.text,
        answer=row.answer,
        entry=row.entry,
        media=row.media,
        messages=row.messages,
        other_answers=row.other_answers,
        reply=row.reply,
        tools=row.tools,
        rendered=row.rendered,
    )


def _held_out(source: Source, share: int, taken: set[bytes], keep: Keep, train: Iterable[Row]) -> list[Row]:
    """Returns the rows to hold out, in order of preference, and adds their keys to `taken`.

    If the source has no held-out files, the rows come from the end of its training rows.
    """
    if isinstance(source, ReasoningGymSource):
        return _take_distinct(_gym_rows(source, "held_out", HELD_OUT_SEED, share * DRAWS_PER_HELD_OUT), share, taken)
    if has_held_out_files(source):
        return _take_distinct(read_rows(source, "held_out", keep), share, taken)
    return _take_last_distinct(train, share, taken)


def has_held_out_files(source: Source) -> bool:
    """Returns whether a source names files from which its held-out rows come."""
    return isinstance(source, FileSource) and "held_out" in splits_of(source)


def _part_of(rows: Iterable[Row], most: int) -> int:
    """Returns the size of a part that follows the data: a fraction of the distinct tasks, from 1 to `most`.

    Reads no more rows than it needs to know that `most` is small enough.
    """
    if not most:
        return 0
    distinct: set[bytes] = set()
    _take_distinct(rows, most * PART_OF_DATA, distinct)
    return min(most, max(1, len(distinct) // PART_OF_DATA))


def _take_distinct(rows: Iterable[Row], count: int, taken: set[bytes]) -> list[Row]:
    """Returns the first rows whose tasks are not in `taken` yet, and adds their keys to it."""
    chosen: list[Row] = []
    if not count:
        return chosen
    for row in rows:
        if (key := task_key(row)) not in taken:
            taken.add(key)
            chosen.append(row)
            if len(chosen) == count:
                break
    return chosen


def _take_last_distinct(rows: Iterable[Row], count: int, taken: set[bytes]) -> list[Row]:
    """Returns the rows that `_take_distinct` would choose from the reversed rows; holds only these in memory."""
    newest: dict[bytes, Row] = {}
    for row in rows if count else ():
        if (key := task_key(row)) in taken:
            continue
        newest.pop(key, None)
        newest[key] = row
        if len(newest) > count:
            del newest[next(iter(newest))]
    taken.update(newest)
    return list(reversed(newest.values()))


def _without(rows: Iterable[Row], tasks: Set[bytes]) -> Iterator[Row]:
    return (row for row in rows if task_key(row) not in tasks)


def _check_enough(part: Literal["held_out", "probe"], data: DataSpec, number: int, share: int, found: int) -> None:
    if found < share:
        remedy = "widen the task's options" if isinstance(data.sources[number], ReasoningGymSource) else "add rows"
        total = getattr(data, part)
        of = "" if total is None else f" of the {total}"
        raise ConfigurationError(
            f"data.{part}: {share}{of} prompts must come from data.sources.{number} "
            f"({source_label(data.sources[number])}), which has only {found} distinct prompts left; "
            f"lower data.{part} or {remedy}"
        )


def _train_rows(source: Source, seed: int, keep: Keep) -> Iterator[Row]:
    if isinstance(source, ReasoningGymSource):
        return _gym_rows(source, "train", TRAIN_SEED + TRAIN_SEED_STRIDE * seed, source.size)
    return read_rows(source, "train", keep)


def _gym_rows(source: ReasoningGymSource, split: str, seed: int, size: int) -> Iterator[Row]:
    from yatt_core.datasets import gym  # the import takes a second, and only building inputs needs it

    for index, entry in enumerate(gym.entries(source.task, source.options, seed, size)):
        answer = None if entry["answer"] is None else str(entry["answer"])
        yield Row(f"{split}/{source.task}:{index}", entry["question"], answer, entry)
