"""Decides whether a run is at a point at which its spec may change, and finds named files that have changed since.

Consumes the ledger, the run's folder, and the specs before and after. Produces whether the open iteration's experience has to be
discarded for the change, or a `ConfigurationError` that says how to get to such a point.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from db.ledger import Ledger
from flows.branching.restore_points import RestorePoints
from flows.branching.spec_changes import PastSpecs, keys_read_by_samples, keys_read_by_updates
from flows.run.home import Home
from yatt_core.collection.shard_plan import is_speed
from yatt_core.errors import ConfigurationError
from yatt_core.keys import iteration_folder
from yatt_core.named_code import read_code_file
from yatt_core.spec import RunSpec
from yatt_core.spec.reading.code_digests import files_by_key


@dataclass(frozen=True, slots=True)
class RevisionOptions:
    """What a person asks of a revision besides the changed keys.

    new_code: the files that the spec names are taken as they are now.
    discard: the open iteration's experience may be discarded, if the changed keys would have made it otherwise; implied by
        `new_code`.
    """

    new_code: bool = False
    discard: bool = False

    @property
    def may_discard(self) -> bool:
        """Whether experience of the open iteration may be discarded."""
        return self.new_code or self.discard

    @property
    def words(self) -> list[str]:
        """The options by which a person asks for this."""
        return [*(["--new-code"] if self.new_code else []), *(["--discard"] if self.discard else [])]


NOTHING_ELSE = RevisionOptions()
SEALED_WITH = ("rewards.", "rollout.", "algorithm.distillation")
"""Keys that what is in flight between iterations has been made with."""


def newer_code(spec: RunSpec, run: str) -> list[str]:
    """Returns the changes, as KEY=VALUE, that take the present contents of the files that a run's spec names.

    Sources of prompts are not among them: the run's prompts have been made.

    Raises `ConfigurationError` if none of them has changed since the run took its copy, or one cannot be read.
    """
    files = {key: code for key, code in files_by_key(spec).items() if not key.startswith("data.sources.")}
    if not files:
        raise ConfigurationError(
            f"--new-code: the spec of run {run} names no Python file that it executes during the run; installed code is used "
            f"as it is at each start, so that `yatt resume {run}` is enough"
        )
    changed = [
        (key, code)
        for key, code in files.items()
        if hashlib.sha256(read_code_file(code.path, key)).hexdigest() != code.sha256
    ]
    if not changed:
        named = ", ".join(f"{key} ({code.path})" for key, code in files.items())
        raise ConfigurationError(f"--new-code: no file has changed since run {run} took its copies: {named}")
    return [f"{key}={json.dumps(f'{code.path}:{code.attribute}')}" for key, code in changed]


def must_discard(ledger: Ledger, home: Home, before: RunSpec, after: RunSpec, run: str, may_discard: bool) -> bool:
    """Returns whether the open iteration's experience has to be discarded before a change of the spec.

    may_discard: whether that is permitted.

    Raises `ConfigurationError` if the change affects updates that would be replayed, or experience that may not be, or cannot
    be, discarded.
    """
    row = ledger.runs.find(run)
    if row.iteration < 0:
        return False
    points = RestorePoints(ledger, home.run_folder(run), run, row.current_branch)
    keys = keys_read_by_updates(before, after)
    if keys and not points.has_checkpoint(row.iteration):
        raise ConfigurationError(
            f"run {run}: {', '.join(keys)} can only be changed at a checkpoint, and there is none of iteration "
            f"{row.iteration}, the last committed one: updates would be replayed with other values than before. Resume "
            f"the run without --set, then `yatt stop {run} --wait`, which takes a checkpoint, then set it"
            f"{_checkpoint_before(points, run)}"
        )
    keys = keys_read_by_samples(before, after)
    begun = _has_begun(ledger=ledger, home=home, run=run, branch=row.current_branch, iteration=row.iteration + 1)
    if not begun and _carries(ledger, run):
        # Sealed groups are learnt from beside later ones: they must have the same columns.
        keys = [key for key in keys if key.startswith(SEALED_WITH) and not is_speed(key)]
    elif not begun:
        return False
    if not keys:
        return False
    if not may_discard:
        raise ConfigurationError(
            f"run {run}: {', '.join(keys)} cannot be changed while iteration {row.iteration + 1} has experience made with the "
            "old values. Discard it with --discard beside --set, or resume without --set and stop after the iteration"
            f"{_of_a_lag(before)}"
        )
    points.base(row.iteration, after, PastSpecs(ledger))
    return True


def _of_a_lag(spec: RunSpec) -> str:
    """Returns how a run with a lag gets to a commit after which nothing has begun, and what happens to slices."""
    if spec.sliced:
        return (
            f". With {spec.sliced_by}, responses are in flight between iterations; --discard draws them anew, from their "
            "first tokens"
        )
    if not spec.asynchrony.lag:
        return ""
    return (
        f". With asynchrony.lag {spec.asynchrony.lag}, later iterations have begun too, and --discard drops them all; to learn "
        "from them first, resume with --set asynchrony.lag=0 until they are committed"
    )


def _carries(ledger: Ledger, run: str) -> bool:
    """Returns True if groups are in flight at a run's last commit."""
    commit = ledger.commits.latest(run)
    return commit is not None and bool(commit.state.get("carried"))


def _checkpoint_before(points: RestorePoints, run: str) -> str:
    """Returns the other way to a checkpoint, of a run that cannot get past its open iteration."""
    kept = points.newest_checkpoint()
    return (
        "" if kept is None else f"; if it cannot go on, return to a checkpoint with `yatt rollback {run} --to {kept}`"
    )


def _has_begun(ledger: Ledger, home: Home, run: str, branch: int, iteration: int) -> bool:
    """Returns True if experience of an iteration, or a part of it, is in the ledger or on disk."""
    folder = home.run_folder(run) / iteration_folder(branch, iteration)
    return bool(
        ledger.records.waves(run, branch, iteration)
        or ledger.records.shards(run, branch, iteration)
        or (folder.exists() and any(folder.iterdir()))
    )
