"""Decides which spec changes a run's history permits, and finds the spec in force at an iteration.

Consumes two specs, or the ledger's revisions and audit chain. Produces changed keys, or a `ConfigurationError` for a change that
is impossible.

Replay must use the spec under which the updates were made, so a change that affects updates is possible only if there is nothing
to replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from db.ledger import Ledger
from flows.run.dotted_keys import dotted_leaves
from yatt_core.errors import ConfigurationError
from yatt_core.naming import named_in, permit_known
from yatt_core.spec import RunSpec, override_spec, parse_spec
from yatt_core.spec.combinations import refusals
from yatt_core.spec.reading.load import anything
from yatt_core.spec.weights import refused_transport

FIXED = {
    "seed": "the order of the prompts and all random draws so far depend on it",
    "model": "the checkpoints hold its weights",
    "trainer.lora": "the checkpoints hold its adapters, or all weights without it",
    "sft": "it has already been done",
    "algorithm.critic.model": "the critic was initialised from it",
    "algorithm.distillation.teachers": "the run's inputs record the digests of their files",
    "algorithm.distillation.privileged.template": "the run's prompts were measured with it",
    "data.sources": "the run's prompts were made from them, and its cursor counts the prompts drawn from each",
    **{
        f"workload.{key}": "the run's inputs and its checkpoints were made by it"
        for key in ("kind", "file", "sha256", "settings", "models")
    },
    "workload.sampled_by": "the phases of its iterations depend on it",
    "workload.start": "the run has begun with it",
    "data.held_out": "the run's prompts were split by it",
    "data.probe": "the run's prompts were split by it",
    "data.system_prompt": "the run's prompts were made with it",
    "rollout.slice_tokens": "what is in flight between iterations depends on it",
    "rollout.max_slices": "what is in flight is drawn by it",
    "rollout.in_flight": "what is in flight is counted by it",
    "rollout.tail": "what is in flight between iterations depends on it",
}
"""Keys that cannot change along a line of iterations, including forks, and why."""
FIXED_WITH_SLICES = {
    "data.prompts_per_iteration": "what waits in flight is learnt from in its numbers",
    "dynamic_sampling.overdispatch": "what is in flight between iterations depends on it",
}
"""Keys that cannot change either in a run whose responses go on in later iterations, and why."""
UNREAD_BY_UPDATES = (
    "name", "data.curriculum", "dynamic_sampling", "rewards", "controllers", "asynchrony.lag", "placement", "checkpoints",
    "evaluation", "recovery", "guards", "gates", "retention", "tracking", "storage", "callbacks",
)  # fmt: skip
"""Keys that do not affect the replay of an update; rewards and admissions are recorded with the experience."""
UNREAD_BY_SAMPLES = tuple(key for key in UNREAD_BY_UPDATES if key not in ("dynamic_sampling", "rewards"))
"""Keys that affect neither updates nor the collection of experience."""


def changed_spec(before: RunSpec, overrides: Sequence[str], run: str, refusal: str | None) -> RunSpec:
    """Returns a run's spec with changes, given as KEY=VALUE.

    refusal: what to do instead, if the changes may name nothing outside of the spec that it does not name itself; None
        if they may.

    Raises `ConfigurationError` for a change that is impossible or not allowed.
    """
    permit = anything if refusal is None else permit_known(named_in(before), refusal)
    return override_spec(before, overrides, f"the spec of run {run}", permit)


def changed_keys(before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the dotted keys whose values differ, sorted."""
    old = dotted_leaves(before.model_dump(mode="json"))
    new = dotted_leaves(after.model_dump(mode="json"))
    return sorted(key for key in old.keys() | new.keys() if key not in old or key not in new or old[key] != new[key])


def refuse_fixed(before: RunSpec, after: RunSpec) -> None:
    """Raises `ConfigurationError` for a change that would invalidate the past of a line."""
    if (before.critic is None) != (after.critic is None):
        raise ConfigurationError(
            f"--set algorithm.critic: a run {'without' if before.critic is None else 'with'} a critic stays so, and so do "
            "its forks, since its checkpoints depend on it; start a new run with `yatt train`"
        )
    fixed_now = FIXED | (FIXED_WITH_SLICES if before.sliced else {})
    for key in changed_keys(before, after):
        for fixed, why in fixed_now.items():
            if _is_below(key, fixed):
                raise ConfigurationError(
                    f"--set {key}: {fixed} cannot change during a run or in its forks, since {why}; "
                    "start a new run with `yatt train`"
                )
    _refuse_other_slices(before, after)
    if before.virtual != after.virtual:
        raise ConfigurationError(
            "--set rollout.engine.kind: virtual and real engines cannot use each other's checkpoints and experience; "
            "start a new run with `yatt train`"
        )
    kinds = [None if spec.objective is None else spec.objective.kind for spec in (before, after)]
    if kinds[0] != kinds[1] or before.has != after.has:
        raise ConfigurationError(
            f"--set objective: it must stay {kinds[0] or 'null'} during a run and in its forks, with the same pairs, since "
            "what was prepared for one objective does not suit another; start a new run with `yatt train`"
        )
    if before.algorithm.kl is None and after.algorithm.kl is not None:
        raise ConfigurationError(
            "--set algorithm.kl: the run's checkpoints hold no reference policy; start a new run with `yatt train`"
        )


def _refuse_other_slices(before: RunSpec, after: RunSpec) -> None:
    """Raises `ConfigurationError` for a change with which another key decides whether responses go on in later iterations.

    That may be a change of what over-dispatch does not go with.
    """
    if before.sliced_by == after.sliced_by:
        return
    why = "what is in flight between iterations depends on it; start a new run with `yatt train`"
    if after.sliced:
        raise ConfigurationError(
            f"--set: {after.sliced_by} would let responses go on in later iterations, which cannot begin during a run or in its "
            f"forks, since {why}, or set {after.sliced_by} to null as well"
        )
    raise ConfigurationError(
        f"--set: responses would no longer go on in later iterations by {before.sliced_by}, which cannot change during a run "
        f"or in its forks, since {why}"
    )


def refuse_combinations(before: RunSpec, after: RunSpec) -> None:
    """Raises `ConfigurationError` for what a change has brought into a spec or together and what new runs cannot have."""
    known = _excluded(before)
    if lines := [line for line in _excluded(after) if line not in known]:
        raise ConfigurationError("\n".join(lines))


def _excluded(spec: RunSpec) -> list[str]:
    return [*refusals(spec, "starting"), *refusals(spec, "new_runs"), *refused_transport(spec)]


def keys_read_by_updates(before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the changed keys that affect an update, which could not be replayed under the new values."""
    unread: tuple[str, ...] = UNREAD_BY_UPDATES
    unread += _unread_by_samplers(before)
    constant = before.trainer.schedule.kind == after.trainer.schedule.kind == "constant"
    if constant and not before.has.told_iterations:
        unread = (*unread, "iterations")  # any other schedule depends on it, and a workload of one's own is told it
    return [key for key in changed_keys(before, after) if not any(_is_below(key, prefix) for prefix in unread)]


def keys_read_by_samples(before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the changed keys that affect the experience of an iteration or its update."""
    unread: tuple[str, ...] = (*UNREAD_BY_SAMPLES, *_unread_by_samplers(before))
    if not before.has.told_iterations:
        unread = (*unread, "iterations")
    return [key for key in changed_keys(before, after) if not any(_is_below(key, prefix) for prefix in unread)]


def _unread_by_samplers(before: RunSpec) -> tuple[str, ...]:
    """Returns the keys that say where a workload is sampled, but not what: the number of its samplers."""
    return ("rollout.engine.instances",) if before.has.samplers else ()


def _is_below(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(f"{prefix}.")


class PastSpecs:
    """The spec revision under which each iteration of a line was made; read from the audit chains, once per run."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._revisions: dict[str, Mapping[tuple[int, int], int]] = {}
        self._specs: dict[tuple[str, int], RunSpec] = {}

    def revision(self, run: str, branch: int, iteration: int) -> int:
        """Returns the revision in force when the run itself committed an iteration."""
        if self._ledger.runs.revision(run).revision == 1:
            return 1
        if run not in self._revisions:
            self._revisions[run] = self._read(run)
        return self._revisions[run][branch, iteration]

    def spec(self, run: str, branch: int, iteration: int) -> RunSpec:
        """Returns the spec of that revision."""
        key = (run, self.revision(run, branch, iteration))
        if key not in self._specs:
            document = self._ledger.runs.revision(*key).spec
            self._specs[key] = parse_spec(dict(document), f"revision {key[1]} of the spec of run {run}")
        return self._specs[key]

    def _read(self, run: str) -> Mapping[tuple[int, int], int]:
        commits = self._ledger.events.of_kind(run, "commit")
        revisions = self._ledger.events.of_kind(run, "spec_revision")
        return {
            (link.body["branch"], link.body["iteration"]): max(
                revision.body["revision"] for revision in revisions if revision.seq < link.seq
            )
            for link in commits
        }
