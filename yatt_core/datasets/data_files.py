"""Which files a source names, and in which order: a file, a folder, a pattern, or a Hugging Face dataset's folder.

Consumes a source of the spec. Produces `DataFile`s. Nothing is downloaded or cached: a dataset's folder is read
in place. Raises `ConfigurationError` for paths and splits that do not exist.

A folder written by `save_to_disk` is described by its own JSON files. In any other folder, the name of a file
determines its split as in `load_dataset`: `train-00000-of-00002.parquet`, `validation.jsonl`,
`test/part-1.csv`; if no name indicates one, all are `train`.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from yatt_core.datasets.content import COMPRESSED, ending
from yatt_core.datasets.hub_folders import files_of_split
from yatt_core.datasets.saved_datasets import SPLITS, STATE, saved_files, saved_splits
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import is_text
from yatt_core.spec.sections.data import (
    CsvSource,
    FileSource,
    FunctionSource,
    HubSource,
    HuggingFaceSource,
    JsonlSource,
    ParquetSource,
)

FORMATS = {
    ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv",
    ".tsv": "csv", ".ndjson": "jsonl",
}  # fmt: skip
DESCRIPTIONS = frozenset({SPLITS, STATE, "dataset_info.json", "dataset_infos.json", "config.json"})
SPLIT_WORDS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
_SHARD = re.compile(r"(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}\b.*")
_WORD = re.compile(r"[a-z]+")
_Named = TypeVar("_Named")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows.

    name: the file's name in prompt ids.
    format: `jsonl`, `parquet`, `arrow` or `csv`; for a function, which stands for a file, the split that it is asked for.
    """

    path: Path
    name: str
    format: str


def training_files(source: FileSource) -> list[DataFile]:
    """Returns the files of the training rows."""
    match source:
        case JsonlSource() | CsvSource():
            return [_single(source.path, source.kind)]
        case ParquetSource():
            with _looking(source.path):
                return parquet_files(source.path)
        case HuggingFaceSource():
            with _looking(source.path):
                return dataset_files(_subset(source), source.split)
        case HubSource():
            return _fetched(source, source.split)
        case FunctionSource():
            return [DataFile(Path(source.path), source.path, "train")]
        case _:
            raise AssertionError(f"no such source: {source}")


def held_out_files(source: FileSource) -> list[DataFile]:
    """Returns the files of the held-out rows; empty if these are taken from the training rows."""
    match source:
        case JsonlSource(held_out_path=str(path)) | CsvSource(held_out_path=str(path)):
            return [_single(path, source.kind)]
        case ParquetSource(held_out_path=str(path)):
            with _looking(path):
                return parquet_files(path)
        case HuggingFaceSource(held_out_split=str(split)):
            with _looking(source.path):
                return dataset_files(_subset(source), split)
        case HubSource(held_out_split=str(split)):
            return _fetched(source, split)
        case FunctionSource(held_out_rows=True):
            return [DataFile(Path(source.path), source.path, "held_out")]
        case _:
            return []


def _fetched(source: HubSource, split: str) -> list[DataFile]:
    folder = Path(source.path)
    return [_data_file(folder / name, name, format_of(Path(name)) or "jsonl") for name in files_of_split(source, split)]


@contextmanager
def _looking(path: str) -> Iterator[None]:
    """Turns system errors about a path, such as missing permissions, into `ConfigurationError`."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"data.sources: {error.filename or path} cannot be read: {error.strerror}") from None


def format_of(path: Path) -> str | None:
    """Returns the format that a file's name indicates, `jsonl`, `parquet`, `arrow` or `csv`; None if it indicates none."""
    packed = path.suffix.lower() in COMPRESSED
    found = FORMATS.get(ending(path))
    return None if packed and found not in ("jsonl", "csv") else found


def _single(path: str, file_format: str) -> DataFile:
    return _data_file(Path(path), Path(path).name, file_format)


def _subset(source: HuggingFaceSource) -> Path:
    """Returns the folder of the configuration that a source names, which is below its path or in `data` below it."""
    folder = Path(source.path)
    if source.subset is None or not folder.is_dir():
        return folder
    for base in (folder, folder / "data"):
        if (base / source.subset).is_dir():
            return base / source.subset
    known = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))
    raise ConfigurationError(
        f"data.sources subset: {folder} has no folder {source.subset!r}; its folders: {', '.join(known) or 'none'}"
    )


def _data_file(path: Path, name: str, file_format: str) -> DataFile:
    """Returns the file; its name must be valid text because prompt ids contain it."""
    if not is_text(name):
        raise ConfigurationError(f"data.sources: the file name {name!r} is not UTF-8; rename the file")
    return DataFile(path, name, file_format)


def parquet_files(path: str) -> list[DataFile]:
    """Returns a single file, all Parquet files below a folder, or those that match a pattern."""
    given = Path(path)
    if given.is_file():
        return [_data_file(given, given.name, "parquet")]
    if given.is_dir():
        base = given
        found = _visible_files(given, {"parquet"})
    else:
        base = given.parent
        while glob.has_magic(str(base)):
            base = base.parent
        found = _matching(base, given.relative_to(base).as_posix())
    if not found:
        raise ConfigurationError(f"data.sources: no Parquet files found at {path}")
    return _named(base, found, "parquet")


def _matching(base: Path, pattern: str) -> list[Path]:
    try:
        return [file for file in base.glob(pattern) if file.is_file()]
    except ValueError as error:
        raise ConfigurationError(f"data.sources: {base / pattern} is not a file pattern: {error}") from None


def dataset_files(folder: Path, split: str) -> list[DataFile]:
    """Returns the files of a split of a Hugging Face dataset."""
    if not folder.is_dir():
        raise ConfigurationError(f"data.sources: folder {folder} does not exist")
    splits = saved_splits(folder)
    if splits is None:
        return _loose_files(folder, split)
    _check_split(folder, split, splits)
    return [_data_file(path, path.relative_to(folder).as_posix(), "arrow") for path in saved_files(folder, split)]


def _loose_files(folder: Path, split: str) -> list[DataFile]:
    """Returns the files whose names indicate the split.

    Raises `ConfigurationError` if such files are in several folders or formats, because it is then unclear which of
    them are meant.
    """
    found = data_files_below(folder)
    if not found:
        raise ConfigurationError(
            f"data.sources: {folder} contains no data files ({', '.join(FORMATS)}; texts also with {' or '.join(COMPRESSED)})"
        )
    by_split = by_split_of({path: path.relative_to(folder) for path in found})
    _check_split(folder, split, list(by_split))
    files = by_split[split]
    if len(folders := {path.parent.relative_to(folder).as_posix() for path in files}) > 1:
        raise ConfigurationError(
            f"data.sources: {folder}: the files of split {split!r} are in {len(folders)} folders, "
            f"{', '.join(sorted(folders))}; name one of them with subset, or make each a source of its own"
        )
    if len(formats := {named for path in files if (named := format_of(path)) is not None}) > 1:
        raise ConfigurationError(
            f"data.sources: {folder}: the files of split {split!r} have several formats "
            f"({', '.join(sorted(formats))}); expected a single one"
        )
    return _named(folder, files, *formats)


def by_split_of(names: Mapping[_Named, Path]) -> dict[str, list[_Named]]:
    """Returns the files of each split by what their names indicate; if no name indicates one, all are `train`.

    names: each file's path relative to the dataset's folder.
    """
    by_split: dict[str, list[_Named]] = defaultdict(list)
    for file, path in names.items():
        if (named := split_of(path)) is not None:
            by_split[named].append(file)
    return by_split or {"train": list(names)}


def data_files_below(folder: Path) -> list[Path]:
    """Returns the files at any depth that have rows, by their names; without those that describe a dataset."""
    return [path for path in _visible_files(folder, set(FORMATS.values())) if path.name not in DESCRIPTIONS]


def split_of(path: Path) -> str | None:
    """Returns the split indicated by a file's name or else by the names of its folders; None if there is none.

    path: relative to the dataset's folder.
    """
    if shard := _SHARD.fullmatch(path.name):
        return shard["split"]
    for part in (path.stem, *reversed(path.parent.parts)):
        named = {SPLIT_WORDS[word] for word in _WORD.findall(part.lower()) if word in SPLIT_WORDS}
        if len(named) > 1:
            raise ConfigurationError(
                f"data.sources: the name {path} indicates several splits: {', '.join(sorted(named))}"
            )
        if named:
            return named.pop()
    return None


def _check_split(folder: Path, split: str, known: Sequence[str]) -> None:
    if split not in known:
        raise ConfigurationError(
            f"data.sources: {folder} has no split {split!r}; it has {', '.join(sorted(known)) or 'none'}"
        )


def _visible_files(folder: Path, formats: Set[str]) -> list[Path]:
    """Returns the files with one of the formats at any depth; skips names that start with a dot or an underscore."""
    return [
        path
        for path in folder.rglob("*")
        if format_of(path) in formats
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]


def _named(base: Path, paths: Sequence[Path], file_format: str) -> list[DataFile]:
    """Returns the files in order of their names relative to the base."""
    files = [_data_file(path, path.relative_to(base).as_posix(), file_format) for path in paths]
    return sorted(files, key=lambda file: file.name)
