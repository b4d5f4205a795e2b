"""A repository of the Hugging Face Hub in a spec: which one, which revision of it, and what that meant when it was fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from yatt_core.naming import Names
from yatt_core.repository_names import is_part, is_repository
from yatt_core.secret_references import SecretReference
from yatt_core.spec.base import SpecModel

COMMIT = r"[0-9a-f]{40}"
SELECTING = ("subset", "split", "held_out_split")
"""Keys of a dataset that select files of its repository."""
FILLED_IN = frozenset({"pinned", "path"})


class PinnedRevision(SpecModel):
    """What a repository's name and revision meant when its files were fetched; filled in by YATT, so that a run never changes
    when a branch moves.
    """

    asked: Annotated[str, Names("repository")]
    """The keys that were resolved, as text. If the spec names something else by now, it is resolved anew."""
    commit: Annotated[str, Names("repository")] = Field(pattern=rf"^{COMMIT}$")
    """The commit of the revision."""
    manifest: Annotated[str, Names("repository")] = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the list of the fetched files with their sizes and digests."""


class Repository(SpecModel):
    """A repository of the Hub."""

    repo: Annotated[str, Names("repository")]
    """Name of the repository, such as `Qwen/Qwen3-0.6B`; a name without an organisation is one of the Hub's first ones."""
    revision: Annotated[str, Names("repository")] = Field(default="main", min_length=1, max_length=255)
    """A branch, a tag, or a commit. It is resolved to a commit once, before the run is created."""
    token: Annotated[SecretReference | None, Names("secret")] = None
    """Where the token is that gives access to a gated or private repository. `null`: what `huggingface_hub` finds (`HF_TOKEN`,
    or the file that `hf auth login` has written), if anything."""
    pinned: PinnedRevision | None = None
    """The commit, once it is known; filled in by YATT."""

    @field_validator("repo")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not is_repository(value) and not is_part(value):
            raise ValueError("not the name of a repository on the Hub; expected ORGANISATION/NAME")
        return value

    @model_validator(mode="before")
    @classmethod
    def _forget_another_revision(cls, tree: Any) -> Any:
        """Drops what was filled in for another repository, revision or selection of files."""
        if not isinstance(tree, Mapping) or not isinstance(pinned := tree.get("pinned"), Mapping):
            return tree
        if pinned.get("asked") == cls.asked_of(tree):
            return tree
        return {key: value for key, value in tree.items() if key not in FILLED_IN}

    @classmethod
    def asked_of(cls, tree: Mapping[str, Any]) -> str:
        """Returns the keys that determine the files, as text."""
        keys = [key for key in ("repo", "revision", *SELECTING) if key in cls.model_fields]
        given = {key: tree.get(key, cls.model_fields[key].get_default()) for key in keys}
        return " ".join(f"{key}={value}" for key, value in given.items() if value is not None)

    @property
    def asked(self) -> str:
        """The keys that determine the files, as text."""
        return self.asked_of({key: getattr(self, key) for key in type(self).model_fields})
