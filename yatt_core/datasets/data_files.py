"""Which files a source names, in which order: a file, a folder, a pattern, or a Hugging Face dataset's folder.

Consumes a source of the spec; produces `DataFile`s. Nothing is fetched and nothing is cached: a dataset's folder is read as it
lies there. Raises `ConfigurationError` for paths and splits that are not there.

Of a folder that `save_to_disk` wrote, its own JSON files say what is in it. In any other, a file's name says its split as
`load_dataset` understands names: `train-00000-of-00002.parquet`, `validation.jsonl`, `test/part-1.csv`; where no name says
one, all are `train`.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.datasets.saved_datasets import SPLITS, STATE, saved_files, saved_splits
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import is_text
from yatt_core.spec.sections.data import FileSource, HuggingFaceSource, JsonlSource, ParquetSource

FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}
DESCRIPTIONS = frozenset({SPLITS, STATE, "dataset_info.json", "dataset_infos.json", "config.json"})
SPLIT_WORDS = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation",
    "test": "test", "testing": "test", "eval": "test", "evaluation": "test",
}  # fmt: skip
_SHARD = re.compile(r"(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}\b.*")
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows. name: what it is called in prompt ids. format: `jsonl`, `parquet`, `arrow` or `csv`."""

    path: Path
    name: str
    format: str


def training_files(source: FileSource) -> list[DataFile]:
    """The files of the training rows."""
    match source:
        case JsonlSource():
            return [_jsonl(source.path)]
        case ParquetSource():
            with _looking(source.path):
                return parquet_files(source.path)
        case HuggingFaceSource():
            with _looking(source.path):
                return dataset_files(Path(source.path), source.split)
        case _:
            raise AssertionError(f"no such source: {source}")


def held_out_files(source: FileSource) -> list[DataFile]:
    """The files of the held-out rows; none where these are to be taken from the training rows."""
    match source:
        case JsonlSource(held_out_path=str(path)):
            return [_jsonl(path)]
        case ParquetSource(held_out_path=str(path)):
            with _looking(path):
                return parquet_files(path)
        case HuggingFaceSource(held_out_split=str(split)):
            with _looking(source.path):
                return dataset_files(Path(source.path), split)
        case _:
            return []


@contextmanager
def _looking(path: str) -> Iterator[None]:
    """Turns what the system says of a path, that it may not be read or is too long a name, into our error."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"data.sources: {error.filename or path} cannot be read: {error.strerror}") from None


def _jsonl(path: str) -> DataFile:
    return _data_file(Path(path), Path(path).name, "jsonl")


def _data_file(path: Path, name: str, file_format: str) -> DataFile:
    """The file; its name goes into prompt ids, and so has to be text."""
    if not is_text(name):
        raise ConfigurationError(f"data.sources: the name {name!r} of a file is not UTF-8; rename it")
    return DataFile(path, name, file_format)


def parquet_files(path: str) -> list[DataFile]:
    """A file, all Parquet files below a folder, or those that a pattern names."""
    given = Path(path)
    if given.is_file():
        return [_data_file(given, given.name, "parquet")]
    if given.is_dir():
        base, found = given, _visible_files(given, {".parquet"})
    else:
        base = given.parent
        while glob.has_magic(str(base)):
            base = base.parent
        found = _matching(base, given.relative_to(base).as_posix())
    if not found:
        raise ConfigurationError(f"data.sources: there are no Parquet files at {path}")
    return _named(base, found, "parquet")


def _matching(base: Path, pattern: str) -> list[Path]:
    try:
        return [file for file in base.glob(pattern) if file.is_file()]
    except ValueError as error:
        raise ConfigurationError(f"data.sources: {base / pattern} is no pattern of files: {error}") from None


def dataset_files(folder: Path, split: str) -> list[DataFile]:
    """The files of a split of a Hugging Face dataset."""
    if not folder.is_dir():
        raise ConfigurationError(f"data.sources: there is no folder {folder}")
    splits = saved_splits(folder)
    if splits is None:
        return _loose_files(folder, split)
    _check_split(folder, split, splits)
    return [_data_file(path, path.relative_to(folder).as_posix(), "arrow") for path in saved_files(folder, split)]


def _loose_files(folder: Path, split: str) -> list[DataFile]:
    """The files whose names say the split: of one folder and one format, or it is not clear what is meant."""
    found = [path for path in _visible_files(folder, FORMATS) if path.name not in DESCRIPTIONS]
    if not found:
        raise ConfigurationError(f"data.sources: {folder} has no files of rows ({', '.join(FORMATS)})")
    by_split: dict[str, list[Path]] = defaultdict(list)
    for path in found:
        if (named := _split_of(path.relative_to(folder))) is not None:
            by_split[named].append(path)
    by_split = by_split or {"train": found}
    _check_split(folder, split, list(by_split))
    files = by_split[split]
    if len(folders := {path.parent.relative_to(folder).as_posix() for path in files}) > 1:
        raise ConfigurationError(
            f"data.sources: {folder}: the files of split {split!r} lie in {len(folders)} folders, "
            f"{', '.join(sorted(folders))}; set path to one of them, or make them sources of a mixture"
        )
    if len(formats := {FORMATS[path.suffix] for path in files}) > 1:
        raise ConfigurationError(
            f"data.sources: {folder}: the files of split {split!r} have several formats, {', '.join(sorted(formats))}; leave one"
        )
    return _named(folder, files, *formats)


def _split_of(path: Path) -> str | None:
    """The split that a file's name, or else the folders' names, say; None for none."""
    if shard := _SHARD.fullmatch(path.name):
        return shard["split"]
    for part in (path.stem, *reversed(path.parent.parts)):
        named = {SPLIT_WORDS[word] for word in _WORD.findall(part.lower()) if word in SPLIT_WORDS}
        if len(named) > 1:
            raise ConfigurationError(f"data.sources: the name {path} says several splits: {', '.join(sorted(named))}")
        if named:
            return named.pop()
    return None


def _check_split(folder: Path, split: str, known: Sequence[str]) -> None:
    if split not in known:
        raise ConfigurationError(
            f"data.sources: {folder} has no split {split!r}; it has {', '.join(sorted(known)) or 'none'}"
        )


def _visible_files(folder: Path, suffixes: Any) -> list[Path]:
    """Files with one of the suffixes at any depth; names that begin with a dot or an underscore are others' bookkeeping."""
    return [
        path
        for path in folder.rglob("*")
        if path.suffix in suffixes
        and path.is_file()
        and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]


def _named(base: Path, paths: Sequence[Path], file_format: str) -> list[DataFile]:
    """The files in order of their names below the base."""
    files = [_data_file(path, path.relative_to(base).as_posix(), file_format) for path in paths]
    return sorted(files, key=lambda file: file.name)
