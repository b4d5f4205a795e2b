"""Where a peer's model and data are: local paths, and names of repositories on the Hugging Face Hub, in the forms of a spec.

Consumes a text and the folder of the file that has it. Produces trees of a spec. Looks only whether a path exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.datasets.data_files import format_of
from yatt_core.repository_names import is_repository

_DATA_FILES = (".parquet", ".jsonl", ".json", ".csv")


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """What the options of `yatt init` say in place of the file, or beside it.

    folder: of the file; its paths are relative to it, or to the working folder.
    model, sources: in the form of a spec; None and empty if the file decides.
    rewarded: whether `--reward` names the rewards, or the rows have them.
    processes: number of processes of the peer's run.
    count_rows: returns the number of rows of sources, if it can be known.
    positions: of the model, for prompt and response together; infinite for a model without a limit, None if it is not known.
    longest: returns the tokens of the longest of the first prompts and responses, if they are known; 0 for no responses.
    """

    folder: Path
    model: dict[str, Any] | None = None
    sources: tuple[dict[str, Any], ...] = ()
    rewarded: bool = False
    processes: int | None = None
    count_rows: Callable[[Sequence[dict[str, Any]]], int | None] = lambda sources: None
    positions: float | None = None
    longest: Callable[[], tuple[int, int] | None] = lambda: None


def model_of(text: str, folder: Path, revision: str | None = None) -> dict[str, Any]:
    """Returns the model that a path or a repository's name stands for; a local path wins."""
    if local := local_path(text, folder):
        return {"kind": "folder", "path": local}
    return hub_model(text, revision)


def source_of(
    text: str, folder: Path, subset: str | None = None, split: str | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Returns the source that a path or a repository's name stands for; a local path wins."""
    local = local_path(text, folder)
    if local is None:
        return hub_data(text, subset, split, revision)
    path = Path(local)
    if path.is_dir() or not path.suffix:
        tree = {"kind": "huggingface", "path": local, "subset": subset, "split": split}
        return {key: value for key, value in tree.items() if value is not None}
    return {"kind": format_of(path) or "jsonl", "path": local}


def hub_model(repo: str, revision: str | None = None) -> dict[str, Any]:
    """Returns the form of a model in a repository of the Hub."""
    tree = {"kind": "hub", "repo": repo, "revision": revision}
    return {key: value for key, value in tree.items() if value is not None}


def hub_data(
    repo: str, subset: str | None = None, split: str | None = None, revision: str | None = None
) -> dict[str, Any]:
    """Returns the form of a source in a repository of the Hub."""
    tree = {"kind": "hub", "repo": repo, "subset": subset, "split": split, "revision": revision}
    return {key: value for key, value in tree.items() if value is not None}


def local_path(text: str, folder: Path) -> str | None:
    """Returns an absolute path if a text is one of this machine, or can be nothing else; None for a repository's name."""
    path = Path(text).expanduser()
    for base in (folder, Path()):
        if (base / path).exists():
            return str((base / path).resolve())
    if is_repository(text) and path.suffix not in _DATA_FILES:
        return None
    return str((folder / path).resolve())
