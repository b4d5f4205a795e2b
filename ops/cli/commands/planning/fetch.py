"""`yatt fetch`: fetches the models and datasets that a spec names on the Hub, before a run or for a machine without a network.

Consumes a spec. Fetches into the home folder; writes what is there as a table or as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flows.run.home import Home
from ops.presentation.columns import Column, Columns, SizeCell
from ops.presentation.output import message, write_json, write_list
from ops.terminal.fetching import fetched
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, SpecArgument, examples

if TYPE_CHECKING:
    from yatt_core.spec.sections.repository import Repository

app = typer.Typer()


@app.command(
    epilog=examples(
        "yatt fetch spec.yaml",
        "yatt fetch spec.yaml --set model.revision=v1.0 -o json",
        "HF_ENDPOINT=https://mirror.example yatt fetch spec.yaml",
    )
)
def fetch(
    spec: SpecArgument,
    overrides: OverridesOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Fetch the models and datasets that a spec names on the Hugging Face Hub; `yatt train` does the same before a run.

    Each revision is resolved to a commit, and each file is compared with the digest that the repository lists. A fetch that
    was interrupted goes on with the files that it had completed. The files are kept in `hub` in the home folder, where all
    runs find them.
    """
    message(f"reading {spec}")
    from yatt_core.hub.settle import repositories
    from yatt_core.spec import load_spec

    place = Home.locate(home)
    checked = fetched(place.folder, load_spec(spec, overrides or ()))
    rows = [_described(".".join(map(str, keys)), repository) for keys, repository in repositories(checked)]
    if output is Output.JSON:
        write_json({"repositories": rows})
    elif rows:
        write_list(REPOSITORIES, rows)
    else:
        message(f"{spec} names nothing on the Hub")


REPOSITORIES: Columns[Mapping[str, Any]] = (
    Column("key", lambda row: row["key"]),
    Column("repository", lambda row: row["repository"]),
    Column("revision", lambda row: row["revision"]),
    Column("commit", lambda row: row["commit"]),
    Column("files", lambda row: row["files"], number=True),
    Column("size", lambda row: SizeCell(row["bytes"]), number=True),
    Column("folder", lambda row: row["path"]),
)


def _described(key: str, repository: Repository) -> dict[str, Any]:
    """Returns what was fetched for a key of the spec."""
    from yatt_core.datasets.hub_folders import fetched_manifest

    assert repository.pinned is not None, "what was fetched is pinned"
    path = str(getattr(repository, "path", ""))
    files = fetched_manifest(Path(path), repository.pinned.manifest).files
    return {
        "key": key,
        "repository": repository.repo,
        "revision": repository.revision,
        "commit": repository.pinned.commit,
        "files": len(files),
        "bytes": sum(entry.size for entry in files.values()),
        "path": path,
    }
