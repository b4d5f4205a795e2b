"""A spec in Python: read from a file or a dictionary, changed, and checked; the same reader as that of the command line.

Consumes YAML or plain values. Produces a `Spec`, which is immutable; every change makes a new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.run.home import Home
from ops.preflight.run import check_before_start
from yatt.arguments import PATHS, require
from yatt_core.errors import ConfigurationError
from yatt_core.rewards.process import reward_process
from yatt_core.spec import RunSpec, load_spec, override_spec, spec_of_tree
from yatt_core.spec.reading.documents import yaml_text

Overrides = Mapping[str, Any] | Sequence[str]
"""Changes to a spec: values by dotted key, such as {"trainer.optimizer.learning_rate": 3e-4}, or texts as for `--set`."""


def override_texts(overrides: Overrides) -> tuple[str, ...]:
    """Returns overrides as the texts that `--set` takes."""
    if isinstance(overrides, Mapping):
        return tuple(f"{key}={_text_of(key, value)}" for key, value in overrides.items())
    require("overrides", overrides, (list, tuple), "values by dotted key, or a list of KEY=VALUE")
    for number, text in enumerate(overrides):
        require(f"overrides.{number}", text, str, "KEY=VALUE")
    return tuple(overrides)


def _text_of(key: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"overrides: {key}: expected a plain value ({error})") from None


@dataclass(frozen=True, slots=True)
class Spec:
    """The configuration of a run (docs/spec.md).

    model: the pydantic model with all sections, defaults filled in.
    """

    model: RunSpec

    @classmethod
    def load(cls, path: str | Path, overrides: Overrides = ()) -> Spec:
        """Reads a YAML file; files named in it are relative to its folder.

        Raises `ConfigurationError` with one line for each mistake.
        """
        require("path", path, PATHS, "the path of a spec file")
        return cls(load_spec(Path(path), override_texts(overrides), with_files=True))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: str | Path = ".") -> Spec:
        """Builds a spec from plain values.

        folder: what files named in it are relative to.

        Raises `ConfigurationError` with one line for each mistake.
        """
        require("values", values, Mapping, "a dictionary")
        return cls(spec_of_tree(dict(values), "spec", Path(folder)))

    @property
    def name(self) -> str:
        """The first part of the ids of its runs."""
        return self.model.name

    @property
    def digest(self) -> str:
        """SHA-256 of the whole spec, defaults included."""
        return self.model.digest

    def override(self, overrides: Overrides) -> Spec:
        """Returns a spec with some values changed. Raises `ConfigurationError`."""
        return Spec(override_spec(self.model, override_texts(overrides), "spec"))

    def validate(self, home: str | Path | None = None) -> tuple[str, ...]:
        """Checks whatever can be checked before a start: files, models, reward functions, disk space; returns warnings.

        home: the folder of runs; by default $YATT_HOME, else `runs`.

        Takes seconds, since reward functions are called. Raises `ConfigurationError` with all mistakes, and
        `InfrastructureError`.
        """
        try:
            return tuple(
                check_before_start(Home.locate(None if home is None else Path(home)).folder, self.model).warnings
            )
        finally:
            reward_process().close()  # with the modules of the checked functions, whose files may change

    def to_dict(self) -> dict[str, Any]:
        """Returns all values as plain ones."""
        return self.model.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Returns the spec as YAML, which `load` reads."""
        return yaml_text(self.to_dict())


def as_spec(spec: Spec | str | Path) -> Spec:
    """Returns a spec, which is read if a path is given. Raises `ConfigurationError`."""
    require("spec", spec, (Spec, *PATHS), "a Spec or the path of a spec file")
    return spec if isinstance(spec, Spec) else Spec.load(spec)
