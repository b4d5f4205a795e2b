"""Looks at the data and the model that a first spec is written for.

Consumes paths. Produces `DataLook` and `ModelLook`. Raises `ConfigurationError`, which names the option, and
`DataError` for a row that cannot be read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.datasets.data_files import training_files
from yatt_core.datasets.rows import read_entries
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.model_folder import check_model_folder, count_parameters, positions_of, read_config
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec.sections.data import HuggingFaceSource, JsonlSource, ParquetSource

LOOKED_AT = 1_000
"""Number of rows that are looked at."""
PROMPT_FIELDS = ("prompt", "question", "problem", "instruction", "query", "messages", "input", "text")
ANSWER_FIELDS = ("answer", "solution", "ground_truth", "reference", "target", "label", "expected", "output")


@dataclass(frozen=True, slots=True)
class DataLook:
    """What a data file contains.

    kind: kind of the source in the spec.
    rows: number of rows, at most `LOOKED_AT`.
    complete: False if there are more rows.
    answer_field: None if no row has an answer.
    """

    kind: str
    path: Path
    rows: int
    complete: bool
    prompt_field: str
    answer_field: str | None


@dataclass(frozen=True, slots=True)
class ModelLook:
    """What a model's folder contains.

    positions: maximum number of tokens of prompt and response; None if the model has no limit.
    """

    path: Path
    parameters: int
    positions: int | None
    has_chat_template: bool


def look_at_data(path: Path, prompt_field: str | None = None, answer_field: str | None = None) -> DataLook:
    """Returns what the first rows contain; the fields are guessed from their usual names unless they are given."""
    source = _source(path)
    found = itertools.chain.from_iterable(read_entries(file, source) for file in training_files(source))
    entries = []
    for _, entry in itertools.islice(found, LOOKED_AT + 1):
        if isinstance(entry, DataError):
            raise entry
        entries.append(entry)
    if not entries:
        raise ConfigurationError(f"--data {path}: the file has no rows")
    complete, entries = len(entries) <= LOOKED_AT, entries[:LOOKED_AT]
    prompts = _field(entries, prompt_field, PROMPT_FIELDS, "--prompt-field")
    if prompts is None:
        raise ConfigurationError(
            f"--data {path}: no key of the first row looks like a prompt; name it with --prompt-field "
            f"(its keys: {', '.join(entries[0]) or 'none'})"
        )
    answers = _field(entries, answer_field, ANSWER_FIELDS, "--answer-field")
    return DataLook(source.kind, path, len(entries), complete, prompts, answers)


def _source(path: Path) -> JsonlSource | ParquetSource | HuggingFaceSource:
    if path.is_dir():
        return HuggingFaceSource(path=str(path))
    if not path.exists():
        raise ConfigurationError(f"--data {path}: there is no such file")
    if path.suffix == ".parquet":
        return ParquetSource(path=str(path))
    if path.suffix in {".jsonl", ".json", ".ndjson"}:
        return JsonlSource(path=str(path))
    raise ConfigurationError(
        f"--data {path}: expected JSON Lines (.jsonl), Parquet (.parquet) or the folder of a Hugging Face dataset"
    )


def _field(entries: Sequence[Mapping[str, Any]], given: str | None, usual: Sequence[str], option: str) -> str | None:
    """Returns the key that is given, or the first usual one that occurs; None if there is none."""
    keys = {key: None for entry in entries for key in entry}
    if given is None:
        return next((key for key in usual if key in keys), None)
    if given not in keys:
        raise ConfigurationError(f"{option} {given}: no row has this key; the keys are {', '.join(keys) or 'none'}")
    return given


def look_at_model(path: Path) -> ModelLook:
    """Returns what a Hugging Face folder contains; reads no weights."""
    check_model_folder(path)
    template = load_tokenizer(path).chat_template
    return ModelLook(path, count_parameters(path), positions_of(read_config(path)), template is not None)
