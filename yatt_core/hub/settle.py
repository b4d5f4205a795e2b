"""Gives each repository of the Hub that a spec names its commit and the folder with its files, fetched if they are not there.

Consumes a spec and a home folder. Produces the spec that a run is created with: it names the commit, so that a run never
changes when a branch moves, and folders, which everything else reads as it reads the user's own.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from yatt_core import durable
from yatt_core.datasets.hub_folders import SPLITS
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, YattError
from yatt_core.hub.cache import (
    HUB,
    SKETCH,
    RepositoryFiles,
    Tell,
    complete,
    fetch,
    receive,
    record_reference,
    references,
    repository_folder,
    silent,
)
from yatt_core.hub.client import HubClient, Kind, token_of
from yatt_core.hub.files import CARD, LARGEST_CARD, HubFile, dataset_files, model_files, splits_of
from yatt_core.models.offline import user_is_offline
from yatt_core.secret_references import BlockReader
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.data import HubSource
from yatt_core.spec.sections.repository import COMMIT, PinnedRevision, Repository

XET_CACHE = "HF_XET_CACHE"
Place = tuple[str | int, ...]
WORKLOAD_MODELS = ("workload", "models")
Named = TypeVar("Named", bound=Repository)
Section = TypeVar("Section", bound=SpecModel)


@dataclass(frozen=True, slots=True)
class Settling:
    """How repositories are fetched.

    home: the home folder, which keeps what was fetched.
    tell: is told how far it has come.
    read_block: reads a Prefect block, for a token that is in one.
    weights: False to leave out the tensors of models, for checks and plans.
    data: False to leave out datasets.
    fixed: whether the folders that the spec names are kept, since a run was created with them; otherwise all are in the home.
    contents: whether the contents of folders that are there are compared with their digests.
    fetches: False to refuse what is not here.
    """

    home: Path
    tell: Tell = silent
    read_block: BlockReader | None = None
    weights: bool = True
    data: bool = True
    fixed: bool = False
    contents: bool = False
    fetches: bool = True


def repositories(spec: SpecModel) -> list[tuple[Place, Repository]]:
    """Returns the repositories that a spec names, with the keys that lead to them."""
    return list(_below(spec, ()))


def is_settled(repository: Repository, settling: Settling) -> bool:
    """Returns True if the files of a repository are where they are to be."""
    if repository.pinned is None or not _path_of(repository) or (settling.weights and _is_sketch(repository)):
        return False
    place = Path(_path_of(repository)).parent
    if not settling.fixed and place.with_suffix("") != _place(repository, settling, repository.pinned.commit):
        return False
    found = complete(place, settling.contents)
    return found is not None and found.manifest == repository.pinned.manifest


def settled(spec: Section, settling: Settling) -> Section:
    """Returns a spec, of a run or of a suite, with the commit and folder of each repository that it names.

    A spec that names none, or whose files are there, is returned itself.

    Raises `ConfigurationError`, with the key, for what is not to be had, `InfrastructureError` for what may be had later.
    """
    found = [(place, each) for place, each in repositories(spec) if settling.data or not isinstance(each, HubSource)]
    lacking = [(place, each) for place, each in found if not is_settled(each, _settling_of(place, settling))]
    if not lacking:
        return spec
    tree = spec.model_dump(mode="json")
    for place, repository in lacking:
        known = settled_repository(repository, ".".join(map(str, place)), _settling_of(place, settling))
        node: Any = tree
        for part in place[:-1]:
            node = node[part]
        node[place[-1]] = known.model_dump(mode="json")
    return type(spec).model_validate(tree)


def settled_repository(repository: Named, key: str, settling: Settling) -> Named:
    """Returns a repository with its commit and the folder of its files.

    key: its place in the spec, with which messages begin.

    Raises as `settled` does.
    """
    try:
        client, commit = _resolved(repository, key, settling)
        place = _place(repository, settling, commit)
        fetched = complete(place, settling.contents)
        if fetched is None and client.kind == "model" and not settling.weights:
            place = place.with_name(f"{place.name}{SKETCH}")
            fetched = complete(place)
        if fetched is None:
            _require_fetching(client, commit, settling)
            wanted = _wanted(repository, client, commit, place)
            fetched = fetch(client, wanted, place, settling.tell, sketch=place.suffix == SKETCH)
        pinned = PinnedRevision(asked=repository.asked, commit=commit, manifest=fetched.manifest)
        whole = repository.pinned is not None and not _is_sketch(repository) and place.suffix != SKETCH
        if whole and repository.pinned != pinned:
            raise DataError(f"{client.place}: the files of {commit} are others than those that were pinned")
    except YattError as error:
        raise type(error)(f"{key}: {error}") from None
    return repository.model_copy(update={"pinned": pinned, "path": str(fetched.folder)})


def splits_of_dataset(source: HubSource, key: str, settling: Settling) -> dict[str, list[str]]:
    """Returns the names of the files of each split of a dataset's configuration. Raises as `settled` does."""
    try:
        client, commit = _resolved(source, key, settling)
        _require_fetching(client, commit, settling)
        files = client.files(commit)
        card = _card(client, commit, files, repository_folder(settling.home, client.kind, client.repo))
        return splits_of(files, card, client.repo, source.subset)
    except YattError as error:
        raise type(error)(f"{key}: {error}") from None


def _settling_of(place: Place, settling: Settling) -> Settling:
    """Returns how a repository at a place is fetched: whole, if it is part of what a workload's inputs are built from."""
    return replace(settling, weights=True) if place[:2] == WORKLOAD_MODELS and settling.data else settling


def _kind_of(repository: Repository) -> Kind:
    return "dataset" if isinstance(repository, HubSource) else "model"


def _resolved(repository: Repository, key: str, settling: Settling) -> tuple[HubClient, str]:
    """Returns who asks for a repository, and the commit of its revision."""
    kind = _kind_of(repository)
    os.environ.setdefault(XET_CACHE, str(settling.home / HUB / ".xet"))  # else in the user's own folder
    # Given here, since the library reads its own variable when it is imported, once.
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    client = HubClient(kind, repository.repo, token_of(repository.token, key, settling.read_block), endpoint)
    return client, _commit(repository, client, repository_folder(settling.home, kind, repository.repo))


def _require_fetching(client: HubClient, commit: str, settling: Settling) -> None:
    if user_is_offline():
        raise ConfigurationError(f"{client.place} is not here at {commit}, and HF_HUB_OFFLINE forbids to fetch it")
    if not settling.fetches:
        raise ConfigurationError(
            f"{client.place} is not here at {commit}; `yatt fetch SPEC` on this machine fetches it"
        )


def _commit(repository: Repository, client: HubClient, folder: Path) -> str:
    """Returns the commit of a repository's revision: the pinned one, else what the Hub says now."""
    if repository.pinned is not None:
        return repository.pinned.commit
    if re.fullmatch(COMMIT, repository.revision):
        return repository.revision
    known = references(folder).get(repository.revision)
    if user_is_offline():
        if known is None:
            raise ConfigurationError(
                f"{client.place}: revision {repository.revision!r} has never been fetched here, and HF_HUB_OFFLINE forbids to ask"
            )
        return known
    try:
        commit = client.commit_of(repository.revision)
    except InfrastructureError as error:
        if known is None:
            raise
        raise InfrastructureError(
            f"{error}; revision {repository.revision!r} was last {known}, which can be named in its place"
        ) from None
    record_reference(folder, repository.revision, commit)
    return commit


def _place(repository: Repository, settling: Settling, commit: str) -> Path:
    """Returns the folder for the files of a repository, which depends on the home and on what was asked for.

    Raises `ConfigurationError` for a fixed folder that is none of a home's, into which nothing is fetched.
    """
    folder = repository_folder(settling.home, _kind_of(repository), repository.repo)
    place = folder / commit
    if isinstance(repository, HubSource):
        asked = repository.asked_of({**repository.model_dump(), "revision": commit})
        place = folder / f"{commit}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"
    if not settling.fixed or not _path_of(repository):
        return place
    stored = Path(_path_of(repository)).parent
    if stored.parts[-4:] != place.parts[-4:]:
        raise ConfigurationError(f"path: {stored} is not a folder of {repository.repo} in the folder `hub` of a home")
    return stored


def _wanted(repository: Repository, client: HubClient, commit: str, place: Path) -> RepositoryFiles:
    files = client.files(commit)
    fields: dict[str, Any] = {"repository": client.repo, "commit": commit}
    if not isinstance(repository, HubSource):
        return RepositoryFiles(commit, model_files(files, client.repo), fields)
    card = _card(client, commit, files, place.parent)
    splits = dataset_files(files=files, card=card, repo=client.repo, subset=repository.subset, splits=repository.splits)
    chosen = {name for names in splits.values() for name in names}
    return RepositoryFiles(commit, [file for file in files if file.path in chosen], {**fields, SPLITS: splits})


def _card(client: HubClient, commit: str, files: Sequence[HubFile], folder: Path) -> str:
    """Returns the text of a repository's README.md; empty if it has none."""
    listed = next((file for file in files if file.path == CARD), None)
    if listed is None:
        return ""
    if listed.size > LARGEST_CARD:
        raise ConfigurationError(
            f"{client.place}: {CARD} has {listed.size:,} bytes; its metadata are read up to {LARGEST_CARD:,}"
        )
    durable.make_folder(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".card-") as aside:
        path = receive(client, commit, listed, Path(aside))
        return path.read_text(encoding="utf-8", errors="replace")


def _is_sketch(repository: Repository) -> bool:
    return Path(_path_of(repository)).parent.suffix == SKETCH


def _path_of(repository: Repository) -> str:
    return str(getattr(repository, "path", ""))


def _below(value: Any, place: Place) -> Iterator[tuple[Place, Repository]]:
    match value:
        case Repository():
            yield place, value
        case BaseModel():
            for name in type(value).model_fields:
                yield from _below(getattr(value, name), (*place, name))
        case dict():
            for name, item in value.items():
                yield from _below(item, (*place, name))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _below(item, (*place, index))
