"""What a run trains: a language model, or a training of your own."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from yatt_core.code_names import CodeFileName
from yatt_core.naming import Names
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.model import GivenModelSpec
from yatt_core.workload_kinds import CUSTOM, LANGUAGE, ROWS, TRAINER

ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


def is_empty(models: dict[str, Any]) -> bool:
    """Returns True for a value that is left out of a spec's JSON, so that it does not change the digest of specs without it."""
    return not models


def is_trainer(sampled_by: str) -> bool:
    """Returns True for a value that is left out of a spec's JSON, as `is_empty` does."""
    return sampled_by == TRAINER


class WorkloadStart(SpecModel):
    """The checkpoint of another run, with whose state a workload begins."""

    path: Annotated[str, Names("path")]
    """The checkpoint's folder, such as `${jobs.NAME.checkpoint}` in a pipeline. The run keeps its own copy."""


class WorkloadSpec(SpecModel):
    """What the run trains: a language model, or whatever a class of yours describes (docs/workloads.md)."""

    kind: Annotated[str, Names("code", except_for=frozenset({LANGUAGE, ROWS}))] = Field(default=LANGUAGE, min_length=1)
    """`language`: a language model, as the other sections describe it; `rows`: one that learns from the rows of its data (with an
    `objective` over rows, `language` means the same). Otherwise a class of yours: `package.module:Class`, the
    name of an entry point of the group `yatt.workloads`, or `custom` for a class in a `file`."""
    file: Annotated[CodeFileName | None, Names("code")] = None
    """With `kind: custom`, a class in a Python file, as `path/of/file.py:Class`. The run keeps its own copy and executes only
    that."""
    settings: Annotated[dict[str, JsonValue], Names("code")] = Field(default_factory=dict)
    """What the class gets as its settings."""
    folder: Annotated[str | None, Names("path")] = None
    """What relative paths in `settings` are relative to. Default: the folder of the spec file that has the settings; filled in
    when the spec is read."""
    tunable: Annotated[dict[str, JsonValue], Names("code")] = Field(default_factory=dict)
    """Further settings, such as a learning rate, on which neither the inputs nor the form of the state depend. They can change
    where those of an optimizer can: in a fork, in a trial of a sweep, or at a checkpoint. The class gets them
    with `settings`, and refuses those that may not change."""
    models: dict[ModelName, GivenModelSpec] = Field(default_factory=dict, exclude_if=is_empty)
    """Models of others that the workload reads when its inputs are built, by names that its settings use: `{kind: folder, path:
    FOLDER}` or `{kind: hub, repo: ORGANISATION/NAME}` (docs/hub.md)."""
    start: WorkloadStart | None = None
    """The state of another run to begin with; `null`: one of its own."""
    sampled_by: Literal["trainer", "rollout"] = Field(default="trainer", exclude_if=is_trainer)
    """Who samples, with a class that does: `trainer`, the trainer's ranks; `rollout`, samplers: as many processes of their own as
    `rollout.engine.instances`, which hold the weights in `rollout.engine.dtype` and get them after each update. A class says
    whether it can (docs/workloads.md)."""
    sha256: Annotated[str | None, Names("code")] = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the class's source: of all Python files of the package that has it, or of the `file`; filled in when the spec is
    read. An exact run refuses another source; no run executes a `file` with other contents.
    Classes of YATT itself need none, and one that a spec of an earlier version has is not read: YATT's code is part of the
    environment."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if (self.kind == CUSTOM) != (self.file is not None):
            raise ValueError(f"file: expected with kind {CUSTOM}, and with no other (given: kind {self.kind!r})")
        if self.is_language:
            # The folder comes last: reading a spec fills it in wherever there are settings.
            for key in ("settings", "tunable", "models", "start", "folder"):
                if getattr(self, key):
                    raise ValueError(
                        f"{key}: only a workload of your own has {key}; leave it out, or name its class as kind"
                    )
            if not is_trainer(self.sampled_by):
                raise ValueError(
                    "sampled_by: only a workload of your own has it; leave it out, or name its class as kind"
                )
        if twice := sorted(set(self.settings) & set(self.tunable)):
            raise ValueError(f"tunable.{twice[0]}: stands in settings too; expected each setting once")
        return self

    @property
    def is_language(self) -> bool:
        """True if a language model is trained: there is no class."""
        return self.kind in (LANGUAGE, ROWS)

    @property
    def title(self) -> str:
        """What it is called in messages and tables: its kind, or the class with the name of its file."""
        return self.kind if self.file is None else PurePath(self.file).name

    @property
    def function(self) -> str | None:
        """The name of an installed class; None if there is none."""
        return None if self.kind in (LANGUAGE, ROWS, CUSTOM) else self.kind
