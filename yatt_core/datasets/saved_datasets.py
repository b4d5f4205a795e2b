"""The metadata in a folder written by `save_to_disk` of Hugging Face datasets: `dataset_dict.json` and `state.json`.

Consumes a folder. Produces its splits, and the files of a split in the order in which they were written. Raises
`ConfigurationError`, which names the damaged file and key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from yatt_core.datasets.limits import MAX_ROW_BYTES
from yatt_core.errors import ConfigurationError
from yatt_core.regular_files import check_regular

SPLITS = "dataset_dict.json"
STATE = "state.json"


def _is_plain(name: str) -> str:
    if name != Path(name).name or name == ".." or "\0" in name:
        raise ValueError("is not a plain file or folder name")
    return name


PlainName = Annotated[str, AfterValidator(_is_plain)]
"""The name of a file or folder without separators, so that it cannot lead out of the folder in which it is used."""


class _Description(BaseModel):
    """The fields read from a metadata file; the file has others."""

    model_config = ConfigDict(frozen=True, strict=True)


Kind = TypeVar("Kind", bound=_Description)


class _Splits(_Description):
    splits: tuple[PlainName, ...] = Field(min_length=1)


class _File(_Description):
    filename: PlainName


class _State(_Description):
    files: tuple[_File, ...] = Field(alias="_data_files", min_length=1)
    split: str | None = Field(None, alias="_split")
    indices: JsonValue = Field(None, alias="_indices_data_files")
    old_indices: JsonValue = Field(None, alias="_indices_files")


def saved_splits(folder: Path) -> tuple[str, ...] | None:
    """Returns the splits of a saved dataset; None if the folder does not contain one.

    A split that was saved on its own is stored in the folder itself.
    """
    if (folder / SPLITS).is_file():
        return _read(folder / SPLITS, _Splits).splits
    if (folder / STATE).is_file():
        return (_read(folder / STATE, _State).split or "train",)
    return None


def saved_files(folder: Path, split: str) -> list[Path]:
    """Returns the Arrow files of one of the splits that `saved_splits` returns, in the order of their rows."""
    if (folder / SPLITS).is_file():
        folder = folder / split
    state = _read(folder / STATE, _State)
    if state.indices or state.old_indices:
        raise ConfigurationError(
            f"data.sources: {folder} was saved as a selection of rows in an outdated format; load it and save it again"
        )
    found = [folder / file.filename for file in state.files]
    if missing := [path for path in found if not path.is_file()]:
        raise ConfigurationError(f"data.sources: {folder / STATE} names {missing[0].name}, which does not exist")
    return found


def _read(path: Path, kind: type[Kind]) -> Kind:
    check_regular(path, "data.sources")
    try:
        if (size := path.stat().st_size) > MAX_ROW_BYTES:
            raise ConfigurationError(f"data.sources: {path} has {size:,} bytes; at most {MAX_ROW_BYTES:,} are read")
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(
            f"data.sources: {path} is not valid metadata of a saved dataset: {f'{key}: ' if key else ''}{said}"
        ) from None
