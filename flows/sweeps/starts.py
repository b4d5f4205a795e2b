"""The beginnings that the trials of a sweep share: inputs and supervised fine-tuning are computed once for each.

Consumes the spec of the runs and the space of a sweep. Produces the keys that forks cannot change, and the start of a trial.

A trial is a fork of its start at iteration 0. Keys of the model, the data and supervised fine-tuning, and the other ones that
`branching.spec_changes` lists, shape iteration 0: trials with different values of these have different starts. So do seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

from flows.branching.spec_changes import refuse_fixed
from flows.sweeps.space import Choices, Setting, Space
from flows.sweeps.spec import changed_spec, overrides_of
from yatt_core.digests import json_digest
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec, override_spec


@dataclass(frozen=True, slots=True)
class SharedStart:
    """A run at iteration 0 of which trials are forks.

    setting: the values of the keys that forks cannot change.
    """

    seed: int
    setting: Setting

    @property
    def name(self) -> str:
        """The start's name among the members of its sweep."""
        return "/".join(("start", str(self.seed), *([json_digest(self.setting)[:16]] if self.setting else [])))

    def overrides(self) -> list[str]:
        """Returns the changes to the spec of the runs, as KEY=VALUE."""
        return [*overrides_of(self.setting), f"seed={self.seed}"]


@dataclass(frozen=True, slots=True)
class Starts:
    """The starts of a sweep.

    keys: those of the space that forks cannot change.
    """

    run: RunSpec
    keys: tuple[str, ...]

    @classmethod
    def of(cls, run: RunSpec, space: Space) -> Starts:
        """Finds the keys of which a fork cannot take every value."""
        probes = {
            key: each.values if isinstance(each, Choices) else (each.low, each.high) for key, each in space.items()
        }
        fixed = (key for key, values in probes.items() if any(not _forks_to(run, {key: value}) for value in values))
        return cls(run, tuple(fixed))

    def start(self, setting: Setting, seed: int) -> SharedStart:
        """Returns the start of a trial."""
        return SharedStart(seed, {key: value for key, value in setting.items() if key in self.keys})

    def own_overrides(self, setting: Setting) -> list[str]:
        """Returns the changes by which a trial differs from its start, as KEY=VALUE."""
        return overrides_of({key: value for key, value in setting.items() if key not in self.keys})

    def refusal(self, setting: Setting) -> str | None:
        """Returns why no run can have a setting; None if one can."""
        start = self.start(setting, self.run.seed)
        try:
            refuse_fixed(
                override_spec(self.run, start.overrides(), "the spec of the start"), changed_spec(self.run, setting)
            )
        except ConfigurationError as error:
            return str(error)
        return None


def _forks_to(run: RunSpec, setting: Setting) -> bool:
    """Returns False if a fork cannot take a setting; a setting that suits no run as it is says nothing."""
    try:
        after = changed_spec(run, setting)
    except ConfigurationError:
        return True
    try:
        refuse_fixed(run, after)
    except ConfigurationError:
        return False
    return True
