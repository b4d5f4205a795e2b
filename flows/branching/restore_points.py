"""Decides which iterations of a run can be restored, and which changes of its spec that allows.

Consumes the ledger's lines, checkpoints and audit chain, and the run's folder. Produces the checkpoint from which a
state is restored, or a `ConfigurationError` that names the restorable iterations. Writes only files fetched from the
durable tier.

A state is restored from a checkpoint by replaying the later updates from sealed experience. Replay must use the spec
under which the updates were made, so a change that affects updates is possible only if there is nothing to replay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from db.core.ancestry import range_of
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.files.retention import EXPERIENCE, consecutive
from flows.files.storage import store_of, verify_kept, whole_shards
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.keys import iteration_folder
from yatt_core.manifests import MANIFEST
from yatt_core.spec import RunSpec, parse_spec

log = logging.getLogger("yatt_core.flow")

FIXED = {
    "seed": "the order of the prompts and all random draws so far depend on it",
    "model": "the checkpoints hold its weights",
    "trainer.lora": "the checkpoints hold its adapters, or all weights without it",
    "sft": "it has already been done",
    "algorithm.critic.model": "the critic was initialised from it",
    "algorithm.distillation.teacher": "the run's inputs record the digests of its files",
    "data.sources": "the run's prompts were made from them, and its cursor counts the prompts drawn from each",
    "data.held_out": "the run's prompts were split by it",
    "data.probe": "the run's prompts were split by it",
    "data.system_prompt": "the run's prompts were made with it",
}
"""Keys that cannot change along a line of iterations, including forks, and why."""
UNREAD_BY_UPDATES = (
    "name", "dynamic_sampling", "rewards", "controllers", "placement", "checkpoints", "evaluation", "recovery", "guards",
    "retention", "tracking", "storage",
)  # fmt: skip
"""Keys that do not affect the replay of an update; rewards and admissions are recorded with the experience."""
UNREAD_BY_SAMPLES = tuple(key for key in UNREAD_BY_UPDATES if key not in ("dynamic_sampling", "rewards"))
"""Keys that affect neither updates nor the collection of experience."""


# -- changes of the spec ----------------------------------------------------------------------------------------------


def changed_keys(before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the dotted keys whose values differ, sorted."""
    old, new = _leaves(before.model_dump(mode="json")), _leaves(after.model_dump(mode="json"))
    return sorted(key for key in old.keys() | new.keys() if key not in old or key not in new or old[key] != new[key])


def refuse_fixed(before: RunSpec, after: RunSpec) -> None:
    """Raises `ConfigurationError` for a change that would invalidate the past of a line."""
    if before.algorithm.kind != after.algorithm.kind:
        raise ConfigurationError(
            f"--set algorithm.kind: it must stay {before.algorithm.kind} along a run's line, since checkpoints of one "
            "kind hold a critic and those of the other do not; start a new run with `yatt train`"
        )
    for key in changed_keys(before, after):
        for fixed, why in FIXED.items():
            if _is_below(key, fixed):
                raise ConfigurationError(
                    f"--set {key}: {fixed} cannot change along a run's line, since {why}; "
                    "start a new run with `yatt train`"
                )
    if before.virtual != after.virtual:
        raise ConfigurationError(
            "--set rollout.engine.kind: virtual engines cannot use the checkpoints and experience of real ones, nor "
            "real engines those of virtual ones; start a new run with `yatt train`"
        )
    if before.algorithm.kl is None and after.algorithm.kl is not None:
        raise ConfigurationError(
            "--set algorithm.kl: the run's checkpoints hold no reference policy; start a new run with `yatt train`"
        )


def keys_read_by_updates(before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the changed keys that affect an update, which could not be replayed under the new values."""
    unread: tuple[str, ...] = UNREAD_BY_UPDATES
    if before.trainer.schedule.kind == after.trainer.schedule.kind == "constant":
        unread = (*unread, "iterations")  # with any other schedule, the learning rate depends on it
    return [key for key in changed_keys(before, after) if not any(_is_below(key, prefix) for prefix in unread)]


def keys_read_by_samples(before: RunSpec, after: RunSpec) -> list[str]:
    """Returns the changed keys that affect the experience of an iteration or its update."""
    unread = (*UNREAD_BY_SAMPLES, "iterations")
    return [key for key in changed_keys(before, after) if not any(_is_below(key, prefix) for prefix in unread)]


def _is_below(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(f"{prefix}.")


def _leaves(node: object, prefix: str = "") -> dict[str, object]:
    if isinstance(node, dict) and node:
        return {k: v for key, value in node.items() for k, v in _leaves(value, f"{prefix}{key}.").items()}
    if isinstance(node, list) and node:
        return {k: v for i, value in enumerate(node) for k, v in _leaves(value, f"{prefix}{i}.").items()}
    return {prefix[:-1]: node}


# -- the spec of the past ---------------------------------------------------------------------------------------------


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


# -- iterations within reach ------------------------------------------------------------------------------------------


class Reach:
    """The restorable iterations of one branch's line.

    folder: the run's folder.
    last: the last committed iteration of the line.
    """

    def __init__(self, ledger: Ledger, folder: Path, run: str, branch: int) -> None:
        self._ledger, self._folder, self.run, self.branch = ledger, folder, run, branch
        self._line = ledger.runs.line(run, branch)
        self.last = self._line[-1].last
        self._store = store_of(ledger, run, folder)
        self._kept = [row for row in ledger.records.checkpoints(run, branch=branch) if row.iteration <= self.last]

    def base(self, at: int, spec: RunSpec, past: PastSpecs) -> CheckpointRow:
        """Returns the latest intact checkpoint from which the state after an iteration can be restored.

        Verifies everything that the restoration will read, byte by byte.

        spec: the spec under which the run will continue.

        Raises `ConfigurationError` if there is none; the message names the restorable iterations.
        """
        if not 0 <= at <= self.last:
            raise self._refusal(at, f"it is not committed; the last one of branch {self.branch} is {self.last}")
        why = "no checkpoint at or before it is kept"
        for row in self._kept:
            if row.iteration > at:
                continue
            if not self._is_good(row):
                why = f"the checkpoint of iteration {row.iteration} is damaged"
                continue
            obstacle = self._replay_obstacle(row.iteration, at, spec, past)
            if obstacle is None:
                return row
            why = obstacle
            break
        raise self._refusal(at, why)

    def has_checkpoint(self, at: int) -> bool:
        """Returns True if there is an intact checkpoint of exactly this iteration."""
        return any(row.iteration == at and self._is_good(row) for row in self._kept)

    def within(self) -> list[int]:
        """Returns the iterations that the stored checkpoints and experience should allow, without verifying files."""
        found: set[int] = set()
        for row in self._kept:
            at = row.iteration
            while at <= self.last and at not in found:
                found.add(at)
                at += 1
                if not self._has_experience(at):
                    break
        return sorted(found)

    def _is_good(self, row: CheckpointRow) -> bool:
        """Returns True if a checkpoint's files, fetched if necessary, match their digests; logs a warning if not."""
        try:
            verify_kept(self._store, self._folder, row)
        except DataError as error:
            log.warning("skipping the checkpoint of iteration %d: %s", row.iteration, error)
            return False
        return True

    def _replay_obstacle(self, base: int, at: int, spec: RunSpec, past: PastSpecs) -> str | None:
        """Returns the reason why the updates after a checkpoint cannot be replayed; None if they can."""
        for iteration in range(base + 1, at + 1):
            commit = self._ledger.commits.at(self.run, iteration, self.branch)
            if commit is None:
                return f"iteration {iteration} is not in the ledger"
            rows = self._ledger.records.shards(self.run, commit.branch, iteration)
            if not rows or len(whole_shards(self._store, self._folder, rows)) < len(rows):
                return (
                    f"it needs replay from checkpoint {base}, and the experience of iteration {iteration} is incomplete"
                )
            keys = keys_read_by_updates(past.spec(commit.run, commit.branch, iteration), spec)
            if keys:
                return (
                    f"updates {base + 1} to {at} must be replayed, but were made with other values of "
                    f"{', '.join(keys)}; such a change needs a checkpoint of exactly this iteration"
                )
        return None

    def _has_experience(self, iteration: int) -> bool:
        span = range_of(self._line, iteration)
        if span is None:
            return False
        folder = iteration_folder(span.branch, iteration)
        on_disk = any((part / MANIFEST).exists() for part in (self._folder / folder).glob("w*"))
        return on_disk or str(folder) in self._stored

    @cached_property
    def _stored(self) -> frozenset[str]:
        """The folders of iterations of which the durable tier has a sealed shard."""
        found = self._store.folders(EXPERIENCE, depth=3).items()
        return frozenset(str(PurePosixPath(folder).parent) for folder, whole in found if whole)

    def _refusal(self, at: int, why: str) -> ConfigurationError:
        kept = ", ".join(str(row.iteration) for row in reversed(self._kept)) or "none"
        return ConfigurationError(
            f"run {self.run}: iteration {at} cannot be restored: {why}. Restorable iterations: "
            f"{ranges(self.within()) or 'none'}; checkpoints: {kept}"
        )


def ranges(iterations: Iterable[int]) -> str:
    """Formats numbers as ranges: 0-4, 6, 8-10."""
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in consecutive(sorted(iterations)))
