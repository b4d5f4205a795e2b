"""Operators' changes to a run's line of iterations: fork, rollback, a new spec revision, a fresh failure budget.

Each operation takes the run's lease (so that no driver is active), writes, records who asked for it (`by`), and releases it. None
of them deletes anything: a superseded line keeps its rows, experience and metrics, and only retention deletes files. All raise
`ConfigurationError` for an impossible request, before anything is written, and `LeaseHeld` if a driver holds the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from db.core.engine import Fence
from db.core.errors import RunNotFound
from db.ledger import Ledger
from db.write.outbox import CREATION, OutboxEntry
from db.write.runs import Parent
from flows.branching.inheritance import inherit, is_whole
from flows.branching.restore_points import RestorePoints
from flows.branching.safe_point import NOTHING_ELSE, RevisionOptions, must_discard, newer_code
from flows.branching.spec_changes import PastSpecs, changed_spec, refuse_combinations, refuse_fixed
from flows.delivery.outbox import creation_id, revision_entries, row_id
from flows.files.storage import claim_store, store_of
from flows.prefect_io.secret_blocks import read_block
from flows.run.creation import current_spec, first_entries, write_spec
from flows.run.description import describing_tags
from flows.run.dotted_keys import dotted_text
from flows.run.home import Home
from flows.run.lease import operator_lease
from flows.run.repositories import with_changes
from flows.run.trackers import for_trackers
from yatt_core import durable
from yatt_core.code_files import fetch_code, settle_code
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.codec_check import check_codec
from yatt_core.input_building.materialise import check_prompt_lengths
from yatt_core.input_building.settling import fetch_inputs
from yatt_core.rewards.functions import load_part
from yatt_core.spec import RunSpec, override_spec
from yatt_core.spec.availability import unavailable
from yatt_core.tools.registry import check_tools

BEFORE_FIRST = ("sft", "sync", "evaluate", "commit_start")
PHASES = (
    "place", "collect", "begin_ahead", "prepare", "learn", "collect_ahead", "sync", "evaluate", "checkpoint", "commit",
)  # fmt: skip
MAYBE_AHEAD = ("place", "collect", "begin_ahead", "collect_ahead")
"""Phases of an iteration that is, or may be, collected before its turn."""
START = "start"
RECOVER = "recover"


@dataclass(frozen=True, slots=True)
class Forked:
    """A new fork.

    parent_iteration: the iteration after which it begins.
    checkpoint: the iteration of the checkpoint that it starts from.
    replayed: number of updates to replay from there.
    """

    run: str
    parent_run: str
    parent_branch: int
    parent_iteration: int
    checkpoint: int
    replayed: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A branch opened by a rollback.

    iteration: the iteration after which the branch begins.
    left_branch: the branch that was current before.
    superseded: number of committed iterations that the current line loses.
    checkpoint: the iteration of the checkpoint that the branch starts from.
    replayed: number of updates to replay from there.
    """

    run: str
    branch: int
    iteration: int
    left_branch: int
    superseded: int
    checkpoint: int
    replayed: int


# -- fork -------------------------------------------------------------------------------------------------------------


def fork(
    home: Home,
    run: str,
    at: int,
    overrides: Sequence[str] = (),
    branch: int | None = None,
    by: str = "",
    refusal: str | None = None,
) -> Forked:
    """Creates a run that begins after an iteration of another run, with that iteration's spec and some changes.

    `yatt resume` drives the fork.

    at: the iteration.
    overrides: changes to the spec, as KEY=VALUE.
    branch: the parent's branch; the current one by default, but a superseded one is allowed.
    refusal: as for `changed_spec`.
    """
    with Ledger.open(home.ledger) as ledger:
        _require_whole(ledger, run)
        parent = _parent(ledger, run, branch, at)
        past = PastSpecs(ledger)
        before = past.spec(parent.run, parent.branch, at)
        after = changed_spec(before, overrides, f"{parent.run} at iteration {at}", refusal)
        after = with_changes(home.folder, after, read_block)
        folder = home.run_folder(parent.run)
        fetch_code(after, folder, store_of(ledger, parent.run, folder))
        _refuse_change(before, after, at, folder)
        source = RestorePoints(ledger, home.run_folder(run), run, ledger.runs.line(run, branch)[-1].branch)
        like = _forked_at(ledger=ledger, run=run, branch=branch, overrides=overrides, past=past)
        base = source.base(at, after, past, like)
        reason = " ".join([f"fork of {run} at {at}", *(f"--set {text}" for text in overrides)])
        document = after.model_dump(mode="json")
        made = ledger.runs.create(
            spec_name=after.name,
            spec=document,
            digest=after.digest,
            target_iterations=after.iterations,
            reason=reason,
            parent=parent,
            by=by,
        ).id
        finish_fork(home, ledger, made, source)
    return Forked(
        run=made,
        parent_run=parent.run,
        parent_branch=parent.branch,
        parent_iteration=at,
        checkpoint=base.iteration,
        replayed=at - base.iteration,
    )


def finish_fork(home: Home, ledger: Ledger, run: str, source: RestorePoints | None = None) -> None:
    """Gives a fork its copies of the parent's files, unless it already has them; does nothing if the run is no fork.

    source: the branch to copy from; by default the branch that produced the iteration after which the fork begins.

    Raises `ConfigurationError` if the source has pruned files that the fork needs.
    """
    if is_whole(ledger, run):
        return
    first = ledger.overview.branches(run)[0]
    parent = str(first.parent_run)
    branch = int(first.parent_branch or 0)
    at = int(first.parent_iteration or 0)
    spec = current_spec(ledger, run)
    source = source or RestorePoints(ledger, home.run_folder(parent), parent, branch)
    folder = home.run_folder(run)
    with operator_lease(ledger, run, f"yatt fork of {parent}") as lease:
        fence = lease.fence
        base = source.base(at, spec, PastSpecs(ledger))
        durable.make_folder(folder)
        write_spec(folder, spec)
        if spec.tracking.enabled:
            tags = {"yatt.parent_run": parent, "yatt.parent_branch": str(branch), "yatt.parent_iteration": str(at)}
            told = OutboxEntry(f"{run}/parent", "tags", tags, _now())
            ledger.outbox.enqueue(fence, [*first_entries(run, spec), *for_trackers(spec, [told])])
        store = claim_store(ledger, run, spec, folder)
        settle_code(spec, folder, store, home.run_folder(parent))
        fetch_inputs(home.run_folder(source.run), store_of(ledger, source.run, home.run_folder(source.run)))
        inherit(
            home=home,
            ledger=ledger,
            fence=fence,
            parent=source.run,
            branch=source.branch,
            at=at,
            base=base,
            spec=spec,
            store=store,
        )


def spec_at(ledger: Ledger, run: str, branch: int | None, at: int) -> RunSpec:
    """Returns the spec that a fork after an iteration has without changes. Raises as `fork` does.

    branch: the parent's branch; None for the current one.
    """
    parent = _parent(ledger, run, branch, at)
    return PastSpecs(ledger).spec(parent.run, parent.branch, at)


def _parent(ledger: Ledger, run: str, branch: int | None, at: int) -> Parent:
    """Returns the run and branch that produced an iteration: the run itself or one of its ancestors."""
    _require_branch(ledger, run, branch)
    commit = ledger.commits.at(run, at, branch) if at >= 0 else None
    if commit is None:
        last = ledger.runs.line(run, branch)[-1].last
        raise ConfigurationError(f"run {run}: iteration {at} is not committed; expected 0 to {last}")
    return Parent(commit.run, commit.branch, at)


def _forked_at(
    ledger: Ledger, run: str, branch: int | None, overrides: Sequence[str], past: PastSpecs
) -> Callable[[int], RunSpec | None]:
    """Returns what tells the spec that a fork after an iteration would have; one object for each revision of the parent's."""
    known: dict[int, RunSpec | None] = {}

    def spec_at(at: int) -> RunSpec | None:
        parent = _parent(ledger, run, branch, at)
        before = past.spec(parent.run, parent.branch, at)
        if id(before) not in known:
            try:
                known[id(before)] = override_spec(before, overrides, f"the spec of run {parent.run} at iteration {at}")
            except ConfigurationError:  # a change that suits the spec of another iteration only
                known[id(before)] = None
        return known[id(before)]

    return spec_at


# -- rollback ---------------------------------------------------------------------------------------------------------


def rollback(home: Home, run: str, to: int, reason: str = "", by: str = "") -> RolledBack:
    """Opens a branch after an iteration of the current line and makes it current; `yatt resume` continues there."""
    with Ledger.open(home.ledger) as ledger, operator_lease(ledger, run, f"yatt rollback of {run}") as lease:
        fence = lease.fence
        row = ledger.runs.find(run)
        spec = current_spec(ledger, run)
        _require_whole(ledger, run)
        base = RestorePoints(ledger, home.run_folder(run), run, row.current_branch).base(to, spec, PastSpecs(ledger))
        number = open_branch(
            ledger=ledger, fence=fence, spec=spec, at=to, reason=reason or f"yatt rollback --to {to}", by=by
        )
        ledger.runs.set_state(fence, "stopped", f"rolled back to iteration {to}")
    superseded = row.iteration - to
    return RolledBack(
        run=run,
        branch=number,
        iteration=to,
        left_branch=row.current_branch,
        superseded=superseded,
        checkpoint=base.iteration,
        replayed=to - base.iteration,
    )


def open_branch(
    ledger: Ledger,
    fence: Fence,
    spec: RunSpec,
    at: int,
    reason: str,
    choices: Mapping[str, Mapping[str, Any]] | None = None,
    by: str = "",
) -> int:
    """Opens a branch and enqueues the creation of its tracking run, in one transaction; returns the branch's number.

    choices: choices by name that the branch's first iteration must obey.

    Raises `Fenced`, or `OutOfOrder` if the iteration is not committed.
    """
    run = fence.run
    left = ledger.runs.find(fence.run).current_branch
    commit = ledger.commits.at(run, at)
    parent = {
        "yatt.parent_run": commit.run if commit else run,
        "yatt.parent_branch": str(commit.branch) if commit else "",
        "yatt.parent_iteration": str(at),
        "yatt.reason": reason,
    }

    def tell(number: int) -> list[OutboxEntry]:
        if not spec.tracking.enabled:
            return []
        created = {
            "experiment": spec.tracking.experiment,
            "name": f"{run} branch {number}",
            "tags": describing_tags(run, spec, number) | parent,
        }
        now = _now()
        params = dotted_text(spec.model_dump(mode="json"))
        entries = [
            OutboxEntry(creation_id(run, number), CREATION, created, now),
            OutboxEntry(row_id(run, number, "params"), "params", params, now),
        ]
        if left:
            ended = row_id(run, left, f"left-for-{number}")
            entries.append(OutboxEntry(ended, "status", {"status": "KILLED"}, now))
        return for_trackers(spec, entries)

    return ledger.runs.start_branch(fence=fence, at_iteration=at, reason=reason, tell=tell, choices=choices, by=by)


# -- another spec for the same line -----------------------------------------------------------------------------------


def revise(
    home: Home,
    run: str,
    overrides: Sequence[str],
    by: str = "",
    refusal: str | None = None,
    asked: RevisionOptions = NOTHING_ELSE,
) -> int:
    """Records a spec revision, effective at the next iteration; returns the number of the revision then in force.

    Experience of the open iteration that the changed values would have made otherwise is left on a branch of its own, if that
    is permitted: the next iteration draws its samples anew.

    refusal: as for `changed_spec`.
    """
    with Ledger.open(home.ledger) as ledger, operator_lease(ledger, run, f"yatt resume --set of {run}") as lease:
        fence = lease.fence
        _require_whole(ledger, run)
        row = ledger.runs.find(run)
        before = current_spec(ledger, run)
        changes = [*overrides, *(newer_code(before, run) if asked.new_code else ())]
        after = with_changes(home.folder, changed_spec(before, changes, run, refusal), read_block)
        if after.digest == before.digest:
            return ledger.runs.revision(run).revision
        if after.name != before.name:
            raise ConfigurationError(
                f"--set name: run {run} keeps its name; `yatt fork --name` creates a run with another"
            )
        _refuse_change(before, after, row.iteration, home.run_folder(run))
        known = unavailable(before)
        if lacking := [line for line in unavailable(after) if line not in known]:
            raise ConfigurationError("\n".join(lacking))
        if after.storage != before.storage:
            raise ConfigurationError(
                f"--set storage.url: cannot change, since run {run} has its checkpoints and experience at "
                f"{before.storage.url}; `yatt fork {run} --at N --set storage.url=...` starts another run elsewhere"
            )
        discards = must_discard(
            ledger=ledger, home=home, before=before, after=after, run=run, may_discard=asked.may_discard
        )
        reason = " ".join((*asked.words, *(f"--set {text}" for text in changes)))
        settle_code(after, home.run_folder(run), store_of(ledger, run, home.run_folder(run)))
        # Before the revision: a command that is killed in between has discarded what a repeated one would discard.
        branch = (
            open_branch(ledger=ledger, fence=fence, spec=before, at=row.iteration, reason=reason, by=by)
            if discards
            else row.current_branch
        )
        tell = partial(revision_entries, run, branch, spec=after)
        document = after.model_dump(mode="json")
        # Trackers must create a run that has never been driven before they hear of its revisions.
        ledger.outbox.enqueue(fence, first_entries(run, before))
        number = ledger.runs.add_revision(
            fence=fence,
            spec=document,
            digest=after.digest,
            reason=reason,
            target_iterations=after.iterations,
            tell=tell,
            by=by,
        )
        write_spec(home.run_folder(run), after)
    return number


# -- a new budget -----------------------------------------------------------------------------------------------------


def forgive(home: Home, run: str, iteration: int, phase: str, reason: str = "", by: str = "") -> dict[str, int]:
    """Restores the failure budget of a phase of the open iteration; returns the charged failures by failure class."""
    with Ledger.open(home.ledger) as ledger, operator_lease(ledger, run, f"yatt retry of {run}") as lease:
        fence = lease.fence
        row = ledger.runs.find(run)
        _require_open(row.id, row.iteration, iteration, phase)
        charged = ledger.phases.charged(run, row.current_branch, iteration, phase)
        if not charged:
            failed = sorted(
                {
                    a.phase
                    for a in ledger.phases.attempts(run, row.current_branch, iteration)
                    if a.failure_class is not None
                }
            )
            known = f"failed phases: {', '.join(failed)}" if failed else "none of its phases has failed"
            raise ConfigurationError(
                f"run {run}: {phase} of iteration {iteration} has no failed attempt; {known}"
                + (f". To continue: `yatt resume {run}`" if row.state != "completed" else "")
            )
        return ledger.phases.forgive(
            fence=fence,
            branch=row.current_branch,
            iteration=iteration,
            phase=phase,
            reason=reason or "yatt retry",
            by=by,
        )


def iteration_of(committed: int, phase: str) -> int:
    """Returns the iteration that a phase's budget belongs to, unless it is collected before its turn.

    committed: the last committed iteration.
    """
    return max(0, committed) if phase in (START, RECOVER) else committed + 1


def _require_open(run: str, committed: int, iteration: int, phase: str) -> None:
    """Raises `ConfigurationError` unless the phase has a budget in this iteration.

    A budget belongs to the next iteration to be committed, except that of `recover`, which belongs to the last
    committed one, and those of phases that a lag may have at iterations after the next one.
    """
    known = (*PHASES, RECOVER) if committed >= 0 else (*BEFORE_FIRST, START)
    if phase not in known:
        raise ConfigurationError(f"--phase {phase}: expected one of {', '.join(known)}")
    right = iteration_of(committed, phase)
    if iteration == right or (phase in MAYBE_AHEAD and iteration > committed):
        return
    if iteration <= committed and phase != RECOVER:
        raise ConfigurationError(
            f"run {run}: iteration {iteration} is committed; to repeat it on a new branch: "
            f"`yatt rollback {run} --to {iteration - 1}`"
        )
    raise ConfigurationError(f"run {run}: {phase} is at iteration {right}, not {iteration}")


# -- shared -----------------------------------------------------------------------------------------------------------


def _require_branch(ledger: Ledger, run: str, branch: int | None) -> None:
    try:
        ledger.runs.line(run, branch)
    except RunNotFound as error:
        raise ConfigurationError(f"--branch: {error}") from None


def _require_whole(ledger: Ledger, run: str) -> None:
    if not is_whole(ledger, run):
        raise ConfigurationError(
            f"run {run}: it is a fork whose creation was interrupted; finish it first with `yatt resume {run}`"
        )


def _refuse_change(before: RunSpec, after: RunSpec, committed: int, folder: Path) -> None:
    """Raises `ConfigurationError` for a change that is never allowed: one that alters the past, or to invalid values.

    folder: the folder of the run, or of a fork's parent.
    """
    refuse_fixed(before, after)
    refuse_combinations(before, after)
    if after.iterations < committed:
        raise ConfigurationError(
            f"--set iterations={after.iterations}: iteration {committed} is committed; expected {committed} or more"
        )
    for part in after.rewards.functions:
        load_part(part, folder, after.rewards.critique)
    if after.rollout.tools is not None:
        check_tools(after.rollout.tools.functions, folder)
    check_codec(after)
    check_prompt_lengths(after, folder)


def _now() -> int:
    return int(time.time() * 1000)
