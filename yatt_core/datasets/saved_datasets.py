"""The descriptions in a folder that `save_to_disk` of Hugging Face datasets wrote: `dataset_dict.json` and `state.json`.

Consumes a folder; produces its splits, and the files of one of them in the order in which they were written. Raises
`ConfigurationError` that names the file and the key of what is damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from yatt_core.datasets.local_files import check_regular
from yatt_core.errors import ConfigurationError

SPLITS, STATE = "dataset_dict.json", "state.json"


def _is_plain(name: str) -> str:
    if name != Path(name).name or name == ".." or "\0" in name:
        raise ValueError("is no plain name of a file or folder")
    return name


PlainName = Annotated[str, AfterValidator(_is_plain)]
"""A name that stays within the folder it is looked up in."""


class _Description(BaseModel):
    """What is read of a file; there is more in it."""

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
    """The splits of a saved dataset, None where the folder is none. One that was saved alone lies in the folder itself."""
    if (folder / SPLITS).is_file():
        return _read(folder / SPLITS, _Splits).splits
    if (folder / STATE).is_file():
        return (_read(folder / STATE, _State).split or "train",)
    return None


def saved_files(folder: Path, split: str) -> list[Path]:
    """The Arrow files of one of the splits that `saved_splits` names, in the order of their rows."""
    if (folder / SPLITS).is_file():
        folder = folder / split
    state = _read(folder / STATE, _State)
    if state.indices or state.old_indices:
        raise ConfigurationError(
            f"data.sources: {folder} was saved as a selection of its rows, in a form of old; load it and save it again"
        )
    found = [folder / file.filename for file in state.files]
    if missing := [path for path in found if not path.is_file()]:
        raise ConfigurationError(f"data.sources: {folder / STATE} names {missing[0].name}, which is not there")
    return found


def _read(path: Path, kind: type[Kind]) -> Kind:
    check_regular(path)
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(
            f"data.sources: {path} is no description of a saved dataset: {f'{key}: ' if key else ''}{said}"
        ) from None
