"""Which iterations a run can go back to, and which changes of its spec leave that possible.

Consumes the ledger's lines, checkpoints and audit chain, and the run's folder. Produces the checkpoint that a state is built from,
or a `ConfigurationError` that says what is within reach. Writes nothing but what the durable tier gives back.

A state is a checkpoint, and the updates behind it replayed from the sealed experience. Replay has to go by the spec under which
the updates were made: a change that an update reads can therefore only be made where there is nothing to replay.
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
    "seed": "the order of the prompts and all that was drawn so far come from it",
    "model": "the checkpoints hold its weights",
    "trainer.lora": "the checkpoints hold its adapters, or all weights without it",
    "sft": "it is done",
    "algorithm.critic.model": "the critic has begun with it",
    "algorithm.distillation.teacher": "the run's inputs vouch for its files",
    "data.sources": "the run's prompts were made from them, and its cursor counts what each has given",
    "data.held_out": "the run's prompts were divided by it",
    "data.probe": "the run's prompts were divided by it",
    "data.system_prompt": "the run's prompts were made with it",
}
"""What stays as it is along a line of iterations, across forks too, and why."""
UNREAD_BY_UPDATES = (
    "name", "dynamic_sampling", "rewards", "controllers", "placement", "checkpoints", "evaluation", "recovery", "guards",
    "retention", "tracking", "storage",
)  # fmt: skip
"""What no update reads, so that updates replayed under another value come out the same; rewards and admissions are in the log."""
UNREAD_BY_SAMPLES = tuple(key for key in UNREAD_BY_UPDATES if key not in ("dynamic_sampling", "rewards"))
"""What neither an update nor the making of experience reads."""


# -- changes of the spec ----------------------------------------------------------------------------------------------


def changed_keys(before: RunSpec, after: RunSpec) -> list[str]:
    """The dotted keys whose values differ, sorted."""
    old, new = _leaves(before.model_dump(mode="json")), _leaves(after.model_dump(mode="json"))
    return sorted(key for key in old.keys() | new.keys() if key not in old or key not in new or old[key] != new[key])


def refuse_fixed(before: RunSpec, after: RunSpec) -> None:
    """Raises `ConfigurationError` for a change that would make the past of a line meaningless."""
    if before.algorithm.kind != after.algorithm.kind:
        raise ConfigurationError(
            f"--set algorithm.kind: it stays {before.algorithm.kind} along a run's line, since the checkpoints of one kind hold a "
            "critic and those of the other none; start a new run with `yatt train`"
        )
    for key in changed_keys(before, after):
        for fixed, why in FIXED.items():
            if _is_below(key, fixed):
                raise ConfigurationError(
                    f"--set {key}: {fixed} stays as it is along a run's line, since {why}; start a new run with `yatt train`"
                )
    if before.virtual != after.virtual:
        raise ConfigurationError(
            "--set rollout.engine.kind: virtual engines cannot go on with what real ones made, nor real ones with theirs, since "
            "checkpoints and experience are of the other kind; start a new run with `yatt train`"
        )
    if before.algorithm.kl is None and after.algorithm.kl is not None:
        raise ConfigurationError(
            "--set algorithm.kl: the run's checkpoints hold no reference policy to be pulled towards; start a new run"
        )


def keys_read_by_updates(before: RunSpec, after: RunSpec) -> list[str]:
    """The changed keys that an update reads: under the new values it could not be replayed."""
    unread: tuple[str, ...] = UNREAD_BY_UPDATES
    if before.trainer.schedule.kind == after.trainer.schedule.kind == "constant":
        unread = (*unread, "iterations")  # otherwise the learning rate follows it
    return [key for key in changed_keys(before, after) if not any(_is_below(key, prefix) for prefix in unread)]


def keys_read_by_samples(before: RunSpec, after: RunSpec) -> list[str]:
    """The changed keys that the experience of an iteration depends on, or its update."""
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
    """Which revision of its spec each iteration of a line was made under; read from the audit chains, once a run."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._revisions: dict[str, Mapping[tuple[int, int], int]] = {}
        self._specs: dict[tuple[str, int], RunSpec] = {}

    def revision(self, run: str, branch: int, iteration: int) -> int:
        """The revision in force at the commit of an iteration, which the run itself made."""
        if self._ledger.runs.revision(run).revision == 1:
            return 1
        if run not in self._revisions:
            self._revisions[run] = self._read(run)
        return self._revisions[run][branch, iteration]

    def spec(self, run: str, branch: int, iteration: int) -> RunSpec:
        """That revision, as a spec."""
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
    """What of one branch's line can be gone back to. folder: of the run. last: newest committed iteration of the line."""

    def __init__(self, ledger: Ledger, folder: Path, run: str, branch: int) -> None:
        self._ledger, self._folder, self.run, self.branch = ledger, folder, run, branch
        self._line = ledger.runs.line(run, branch)
        self.last = self._line[-1].last
        self._store = store_of(ledger, run, folder)
        self._kept = [row for row in ledger.records.checkpoints(run, branch=branch) if row.iteration <= self.last]

    def base(self, at: int, spec: RunSpec, past: PastSpecs) -> CheckpointRow:
        """The newest good checkpoint that the state after an iteration can be built from, to go on from there under `spec`.

        Everything that will be read is verified byte by byte. Raises `ConfigurationError`, saying what is within reach.
        """
        if not 0 <= at <= self.last:
            raise self._refusal(at, f"it is not committed; the last iteration of branch {self.branch} is {self.last}")
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
        """True if there is a good checkpoint of exactly this iteration."""
        return any(row.iteration == at and self._is_good(row) for row in self._kept)

    def within(self) -> list[int]:
        """The iterations that checkpoints and experience on disk lead to, without a look into the files."""
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
        """True if a checkpoint's files agree with their digests, once they are in the run's folder; else it is said."""
        try:
            verify_kept(self._store, self._folder, row)
        except DataError as error:
            log.warning("checkpoint of iteration %d is passed over: %s", row.iteration, error)
            return False
        return True

    def _replay_obstacle(self, base: int, at: int, spec: RunSpec, past: PastSpecs) -> str | None:
        """Why the updates behind a checkpoint cannot be replayed, in words; none where they can."""
        for iteration in range(base + 1, at + 1):
            commit = self._ledger.commits.at(self.run, iteration, self.branch)
            if commit is None:
                return f"iteration {iteration} is not in the ledger"
            rows = self._ledger.records.shards(self.run, commit.branch, iteration)
            if not rows or len(whole_shards(self._store, self._folder, rows)) < len(rows):
                return f"it would be replayed from the checkpoint of {base}, and the experience of {iteration} is not whole"
            keys = keys_read_by_updates(past.spec(commit.run, commit.branch, iteration), spec)
            if keys:
                return (
                    f"the updates {base + 1} to {at} would be replayed, and they were made under other values of "
                    f"{', '.join(keys)}; such a change needs a checkpoint of the very iteration"
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
        """Iterations of which the durable tier has a sealed shard, as folders."""
        found = self._store.folders(EXPERIENCE, depth=3).items()
        return frozenset(str(PurePosixPath(folder).parent) for folder, whole in found if whole)

    def _refusal(self, at: int, why: str) -> ConfigurationError:
        kept = ", ".join(str(row.iteration) for row in reversed(self._kept)) or "none"
        return ConfigurationError(
            f"run {self.run}: iteration {at} cannot be gone back to: {why}. Within reach: "
            f"{ranges(self.within()) or 'nothing'}; checkpoints: {kept}"
        )


def ranges(iterations: Iterable[int]) -> str:
    """Numbers as a person writes them: 0-4, 6, 8-10."""
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in consecutive(sorted(iterations)))
