"""Decides which iterations of a run can be restored.

Consumes the ledger's lines and checkpoints, and the run's folder. Produces the checkpoint from which a state is
restored, or a `ConfigurationError` that names the restorable iterations. Writes only files fetched from the durable
tier.

A state is restored from a checkpoint by replaying the later updates from sealed experience.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from db.core.ancestry import IterationRange, range_of
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.branching.spec_changes import PastSpecs, keys_read_by_updates
from flows.files.retention import EXPERIENCE, consecutive
from flows.files.storage import store_of, verify_kept, whole_shards
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.keys import iteration_folder
from yatt_core.manifests import MANIFEST
from yatt_core.spec import RunSpec

SpecAt = Callable[[int], RunSpec | None]
"""Returns the spec under which a run would continue after an iteration; None if it could not."""

log = logging.getLogger("yatt_core.flow")


class RestorePoints:
    """The iterations of a branch's line whose state can be restored.

    folder: the run's folder.
    last: the last committed iteration of the line.
    """

    def __init__(self, ledger: Ledger, folder: Path, run: str, branch: int) -> None:
        self._ledger = ledger
        self._folder = folder
        self.run = run
        self.branch = branch
        self._line = ledger.runs.line(run, branch)
        self.last = self._line[-1].last
        self._store = store_of(ledger, run, folder)
        self._damaged: set[int] = set()
        self._kept = [row for row in ledger.records.checkpoints(run, branch=branch) if row.iteration <= self.last]

    def base(self, at: int, spec: RunSpec, past: PastSpecs, like: SpecAt | None = None) -> CheckpointRow:
        """Returns the latest intact checkpoint from which the state after an iteration can be restored.

        Verifies everything that the restoration will read, byte by byte.

        spec: the spec under which the run will continue.
        like: returns the spec under which it would continue after another iteration, None if it could not; by default the
            same one.

        Raises `ConfigurationError` if there is none; the message names the restorable iterations.
        """
        like = like or (lambda _: spec)
        if not 0 <= at <= self.last:
            why = f"it is not committed; the last one of branch {self.branch} is {self.last}"
            raise self._refusal(at, why, like, past)
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
        raise self._refusal(at, why, like, past)

    def has_checkpoint(self, at: int) -> bool:
        """Returns True if there is an intact checkpoint of exactly this iteration."""
        return any(row.iteration == at and self._is_good(row) for row in self._kept)

    def newest_checkpoint(self) -> int | None:
        """Returns the iteration of the newest checkpoint that is intact; None if there is none."""
        return next((row.iteration for row in self._kept if self._is_good(row)), None)

    def within(self, like: SpecAt, past: PastSpecs) -> list[int]:
        """Returns the iterations that should be restorable from what is stored, without verifying any files.

        like: as for `base`.
        """
        found: set[int] = set()
        differing: dict[tuple[int, int], bool] = {}
        after = self.last + 1  # the base of an iteration is the newest intact checkpoint at or before it
        for row in self._kept:
            if row.iteration in self._damaged or row.iteration >= after:
                continue
            replayed: dict[
                int, RunSpec
            ] = {}  # the specs of the updates since the checkpoint; `past` has one object for each
            for at in range(row.iteration, after):
                if at > row.iteration:
                    span = range_of(self._line, at)
                    if span is None or not self._has_experience(at):
                        break
                    made = past.spec(span.run, span.branch, at)
                    earlier = range(first_replayed(self._line, row.iteration, at, made), row.iteration + 1)
                    if not all(self._has_experience(number) for number in earlier):
                        break
                    replayed[id(made)] = made
                spec = like(at)
                if spec is not None and not any(_differ(made, spec, differing) for made in replayed.values()):
                    found.add(at)
            after = row.iteration
        return sorted(found)

    def _is_good(self, row: CheckpointRow) -> bool:
        """Returns True if a checkpoint's files, fetched if necessary, match their digests; logs a warning if not."""
        try:
            verify_kept(self._store, self._folder, row)
        except DataError as error:
            log.warning("skipping the checkpoint of iteration %d: %s", row.iteration, error)
            self._damaged.add(row.iteration)
            return False
        return True

    def _replay_obstacle(self, base: int, at: int, spec: RunSpec, past: PastSpecs) -> str | None:
        """Returns the reason why the updates after a checkpoint cannot be replayed; None if they can."""
        for iteration in range(first_replayed(self._line, base, at, spec), base + 1):
            commit = self._ledger.commits.at(self.run, iteration, self.branch)
            if commit is not None and not self._is_sealed(commit.branch, iteration):
                return (
                    f"it needs replay from checkpoint {base}, but the experience of iteration {iteration}, from which later "
                    "updates may have learnt, is damaged"
                )
        for iteration in range(base + 1, at + 1):
            commit = self._ledger.commits.at(self.run, iteration, self.branch)
            if commit is None:
                return f"iteration {iteration} is not in the ledger"
            if not self._is_sealed(commit.branch, iteration):
                return f"it needs replay from checkpoint {base}, but the experience of iteration {iteration} is damaged"
            keys = keys_read_by_updates(past.spec(commit.run, commit.branch, iteration), spec)
            if keys:
                return (
                    f"updates {base + 1} to {at} must be replayed, but were made with other values of "
                    f"{', '.join(keys)}; such a change needs a checkpoint of exactly this iteration"
                )
        return None

    def _is_sealed(self, branch: int, iteration: int) -> bool:
        """Returns True if an iteration has experience, and all of it is intact, or has drawn none."""
        rows = self._ledger.records.shards(self.run, branch, iteration)
        if not rows:
            return self._ledger.records.draws_nothing(self.run, branch, iteration)
        return len(whole_shards(self._store, self._folder, rows)) == len(rows)

    def _has_experience(self, iteration: int) -> bool:
        span = range_of(self._line, iteration)
        if span is None:
            return False
        folder = iteration_folder(span.branch, iteration)
        on_disk = any((part / MANIFEST).exists() for part in (self._folder / folder).glob("w*"))
        if on_disk or str(folder) in self._stored:
            return True
        return self._ledger.records.draws_nothing(self.run, span.branch, iteration)

    @cached_property
    def _stored(self) -> frozenset[str]:
        """The folders of the iterations that have a sealed shard on the durable tier."""
        found = self._store.folders(EXPERIENCE, depth=3).items()
        return frozenset(str(PurePosixPath(folder).parent) for folder, whole in found if whole)

    def _refusal(self, at: int, why: str, like: SpecAt, past: PastSpecs) -> ConfigurationError:
        kept = ", ".join(str(row.iteration) for row in reversed(self._kept)) or "none"
        return ConfigurationError(
            f"run {self.run}: iteration {at} cannot be restored: {why}. Restorable iterations: "
            f"{ranges(self.within(like, past)) or 'none'}; checkpoints: {kept}"
        )


def first_replayed(line: Sequence[IterationRange], base: int, at: int, spec: RunSpec) -> int:
    """Returns the first iteration whose experience is needed to replay the updates after a checkpoint.

    A branch draws anew what was in flight where it begins: its updates learn from nothing that was sealed before.
    """
    span = range_of(line, base + 1)
    if base == at or span is None:
        return base + 1
    return max(1, span.first, base + 1 - spec.carry_span)


def _differ(made: RunSpec, spec: RunSpec, known: dict[tuple[int, int], bool]) -> bool:
    """Returns True if an update made under one spec cannot be replayed under another; remembers it by the specs' ids."""
    key = id(made), id(spec)
    if key not in known:
        known[key] = bool(keys_read_by_updates(made, spec))
    return known[key]


def ranges(iterations: Iterable[int]) -> str:
    """Formats numbers as ranges: 0-4, 6, 8-10."""
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in consecutive(sorted(iterations)))
