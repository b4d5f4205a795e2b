"""Which files a path stands for: a file with its test file, or a folder with its splits and configurations.

Consumes a path and the options `--split` and `--subset`. Produces a `DataLocation`. Raises `ConfigurationError`, which names the
option that decides where several files may be meant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ops.starter.packages import packages_may_know
from yatt_core.datasets.data_files import FORMATS, data_files_below, format_of, split_of
from yatt_core.datasets.saved_datasets import saved_splits
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.data import HubSource

KINDS = ("jsonl", "parquet", "csv")
"""Formats that a source of a single file reads, each a kind of its own."""
HELD_OUT = ("test", "validation", "valid", "val", "dev", "eval", "testing", "evaluation")
"""Words of splits that measure, in the order in which they are preferred."""
PREFERRED = {"sft": ("sft", "gen"), None: ("prefs", "preferences", "sft", "gen")}
"""Endings of several training splits, by objective."""
_TRAIN = re.compile(r"(?<![a-z])train(?:ing)?(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DataLocation:
    """What a path stands for.

    kind: kind of the source.
    keys: keys of the source that say which rows are meant, beside its path.
    held_out: keys that name held-out rows, in the order in which they are preferred, each with its name in words.
    says: sentences about what else is there.
    repository: the dataset of the Hub whose files are at the path; None for the user's own.
    """

    path: Path
    kind: str
    keys: Mapping[str, str] = field(default_factory=dict)
    held_out: tuple[tuple[Mapping[str, str], str], ...] = ()
    says: tuple[str, ...] = ()
    repository: HubSource | None = None

    @property
    def named(self) -> str:
        """The path, or the name on the Hub."""
        return str(self.path) if self.repository is None else self.repository.repo


def place_of(
    path: Path, split: str | None = None, subset: str | None = None, objective: str | None = None
) -> DataLocation:
    """Returns what a path stands for."""
    if path.is_dir():
        return _folder(path, split, subset, objective)
    if given := [f"--{name} {value}" for name, value in (("split", split), ("subset", subset)) if value is not None]:
        raise ConfigurationError(f"{given[0]}: {path} is not a folder; name the file of the split with --data")
    if not path.exists():
        raise ConfigurationError(f"--data {path}: there is no such file")
    kind = format_of(path)
    if kind is None or kind not in KINDS:
        raise ConfigurationError(
            f"--data {path}: expected a file of JSON Lines, JSON, CSV, TSV (also .gz and .zst) or Parquet, or the folder of "
            f"a Hugging Face dataset{packages_may_know()}"
        )
    siblings = list(_siblings(path))
    return DataLocation(
        path=path,
        kind=kind,
        held_out=tuple(({"held_out_path": str(sibling)}, sibling.name) for sibling in siblings),
    )


def _siblings(path: Path) -> Iterator[Path]:
    """Yields the files beside a training file that are called as it is, but for the word `train`."""
    for word in HELD_OUT:
        sibling = path.with_name(_TRAIN.sub(word, path.name))
        if sibling != path and sibling.is_file():
            yield sibling


def _folder(path: Path, split: str | None, subset: str | None, objective: str | None) -> DataLocation:
    saved = saved_splits(path)
    if saved is not None:
        if subset is not None:
            raise ConfigurationError(f"--subset {subset}: {path} was written by save_to_disk and has no configurations")
        return with_splits(path=path, keys={}, splits=list(saved), split=split, objective=objective)
    found = _configurations(path)
    if not found:
        raise ConfigurationError(
            f"--data {path}: the folder has no data files ({', '.join(sorted(FORMATS))}){packages_may_know()}"
        )
    if subset is None and len(found) > 1:
        raise ConfigurationError(
            f"--data {path}: the folder has several configurations; choose one with --subset: {', '.join(sorted(found))}"
        )
    if subset is not None and subset not in found:
        known = ", ".join(sorted(name for name in found if name)) or "a single one without a name"
        raise ConfigurationError(f"--subset {subset}: {path} has no such configuration; it has {known}")
    splits = found[next(iter(found)) if subset is None else subset]
    unnamed = splits.pop(None, [])
    keys = {"subset": subset} if subset else {}
    if not splits:
        return with_splits(path=path, keys=keys, splits=["train"], split=split, objective=objective)
    place = with_splits(path=path, keys=keys, splits=sorted(filter(None, splits)), split=split, objective=objective)
    if not unnamed:
        return place
    return replace(place, says=(*place.says, f"not used: {', '.join(unnamed)}, which no split has in its name"))


def with_splits(
    path: Path, keys: Mapping[str, str], splits: Sequence[str], split: str | None, objective: str | None
) -> DataLocation:
    """Returns the rows of a folder or a repository: those of the training split, held out by the split that is called like it."""
    chosen = _training_split(path, splits, split, objective)
    held_out = [name for name in _counterparts(chosen) if name in splits]
    others = [name for name in splits if name != chosen and name not in held_out]
    says = (
        [f"not used: split{'s' if len(others) > 1 else ''} {', '.join(map(repr, others))} (--split chooses one)"]
        if others
        else []
    )
    return DataLocation(
        path=path,
        kind="huggingface",
        keys={**keys, "split": chosen},
        held_out=tuple(({"held_out_split": name}, f"split {name!r}") for name in held_out),
        says=tuple(says),
    )


def _training_split(path: Path, splits: Sequence[str], given: str | None, objective: str | None) -> str:
    if given is not None:
        if given not in splits:
            raise ConfigurationError(f"--split {given}: {path} has no such split; it has {', '.join(splits)}")
        return given
    if "train" in splits:
        return "train"
    trains = [name for name in splits if name.lower().startswith("train")]
    for ending in PREFERRED.get(objective, PREFERRED[None]):
        if f"train_{ending}" in trains:
            return f"train_{ending}"
    if len(trains) == 1:
        return trains[0]
    raise ConfigurationError(
        f"--data {path}: it is not clear which split is for training; choose one with --split: {', '.join(splits)}"
    )


def _counterparts(split: str) -> Iterator[str]:
    """Yields what the held-out split of a training split may be called."""
    for word in HELD_OUT:
        name = re.sub("train(?:ing)?", word, split, count=1, flags=re.IGNORECASE)
        if name != split:
            yield name


def _configurations(folder: Path) -> dict[str, dict[str | None, list[str]]]:
    """Returns the files of each split of each configuration, as a run finds them.

    A configuration is a folder that has data files, or folders with the names of splits; files whose names indicate no split
    are under None.
    """
    found: dict[str, dict[str | None, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(data_files_below(folder)):
        place = file.relative_to(folder)
        split = split_of(place)
        parts = place.parent.parts
        if split is not None and split_of(Path(file.name)) is None:  # the nearest of the folders indicates it
            holder = max(number for number, part in enumerate(parts) if split_of(Path(part, "-")) == split)
            parts = parts[:holder]
        found["/".join(parts)][split].append(place.as_posix())
    return {name: dict(splits) for name, splits in found.items()}
