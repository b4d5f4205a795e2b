"""What follows a failed phase: budgets by class, a pause on a full disk, and the policy for non-finite updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from db.write.commit import IterationCommit
from db.write.records import CheckpointRow
from flows.driver.session import DriverSession
from flows.launch import open_session
from flows.phases.experience import row_of
from flows.phases.failure_policy import (
    CURSOR,
    Paused,
    PhaseRetry,
    allowed_failures,
    handle_failure,
    is_skipped,
    obey_rollback,
)
from flows.phases.recovery import committed_state
from flows.phases.waves import plan_wave
from flows.run.control_state import ControlState
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.protocols import SilentObserver
from tests.experience.tables import experience
from tests.services import ROOT
from yatt_core.errors import (
    AlignmentError,
    DataError,
    InfrastructureError,
    LostActorError,
    NumericError,
    ReplayError,
    StorageFullError,
    YattError,
)
from yatt_core.experience.batch import SAMPLES_FILE
from yatt_core.experience.dynamic_sampling import WavePlan
from yatt_core.experience.shard_log import ShardLog
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import draw
from yatt_core.spec import load_spec
from yatt_core.storage.run_store import Check, NoStore

Opened = Callable[..., DriverSession]


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Opened:
    def make(*overrides: str) -> DriverSession:
        home = Home(tmp_path / "runs")
        spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["tracking.enabled=false", *overrides])
        session = open_session(home, create_run(home, spec), spec, SilentObserver(), None)
        request.addfinalizer(lambda: session.end("ended"))
        return session

    return make


def fail(session: DriverSession, phase: str, iteration: int, error: YattError) -> None:
    """Records a failed attempt as the phase itself would, and applies the failure policy."""
    attempt = session.context.ledger.phases.plan(session.context.fence, session.context.branch, iteration, phase)
    session.context.ledger.phases.dispatch(session.context.fence, attempt)
    session.context.ledger.phases.fail(session.context.fence, attempt, error.failure_class.value, str(error))
    handle_failure(session, iteration, phase, error)


def commit(session: DriverSession, iteration: int) -> ControlState:
    """Commits an iteration; the cursor advances by an iteration's prompts, as in a run."""
    if iteration == 0:
        state = ControlState.initial(session.context.spec.data)
    else:
        state = committed_state(session.context)
        _, cursor = draw(
            session.context.spec.data,
            session.context.spec.seed,
            state.cursor,
            session.context.spec.data.prompts_per_iteration,
        )
        state = ControlState(iteration, cursor)
    state = ControlState(iteration, state.cursor)
    row = IterationCommit(session.context.branch, iteration, state.to_json(), logged_at_ms=0)
    session.context.ledger.commits.commit(session.context.fence, row)
    return state


def checkpoint(session: DriverSession, iteration: int) -> None:
    row = CheckpointRow(
        session.context.run,
        session.context.branch,
        iteration,
        session.context.fence.term,
        f"checkpoints/{iteration}",
        "0",
        1,
        "0",
        0.1,
    )
    session.context.ledger.records.checkpoint(session.context.fence, row)


def test_budgets_are_kept_by_class(opened: Opened) -> None:
    session = opened("recovery.budgets.infrastructure=2")
    with pytest.raises(PhaseRetry):
        fail(session, "collect", 1, InfrastructureError("lost"))
    fail(session, "collect", 1, DataError("a reward raises"))
    fail(session, "collect", 1, InfrastructureError("lost again"))
    for _ in range(session.context.spec.recovery.budgets.lost_actors - 1):
        with pytest.raises(PhaseRetry):
            fail(session, "collect", 1, LostActorError("rollout-0: its actor died"))
    fail(session, "collect", 1, LostActorError("rollout-0: its actor died"))
    with pytest.raises(PhaseRetry):
        fail(session, "collect", 2, InfrastructureError("another iteration has its own"))


def test_a_damaged_copy_is_a_failure_of_the_disk_even_if_the_durable_tier_has_another(opened: Opened) -> None:
    session = opened("recovery.budgets.infrastructure=2")
    context = session.context
    receipt = ShardLog(context.folder, WorkKey(context.run, 0, 1, "collect"), 1).seal(experience(), {})
    context.ledger.records.shard(context.fence, row_of(receipt))
    path = context.folder / receipt.folder / SAMPLES_FILE
    whole = path.read_bytes()

    class Tier(NoStore):
        def fetch(self, folder: str, manifest_sha256: str | None = None, check: Check | None = None) -> bool:
            path.write_bytes(whole)
            return True

    error = DataError("does not match its manifest")
    stored = replace(context, store=Tier())
    assert allowed_failures(stored, 1, "prepare", error) == 1
    path.write_bytes(whole[:-1])
    assert allowed_failures(stored, 1, "prepare", error) == 2


def test_a_full_disk_pauses(opened: Opened) -> None:
    with pytest.raises(Paused, match=r"No space left.*`yatt resume"):
        fail(opened(), "collect", 1, StorageFullError("/runs: No space left on device"))


def test_a_replay_that_differs_is_never_retried(opened: Opened) -> None:
    session = opened("recovery.budgets.numeric=5")
    fail(session, "recover", 3, ReplayError("differs"))


def test_a_trainer_that_differs_from_the_sampler_ends_the_session_and_skips_nothing(opened: Opened) -> None:
    session = opened("recovery.budgets.numeric=5")
    fail(session, "learn", 3, AlignmentError("differ by 1e-07"))
    assert not is_skipped(session.context, session.context.run, 0, 3)


def test_skips_are_recorded_choices_and_limited(opened: Opened) -> None:
    session = opened("recovery.non_finite_limit=2")
    for iteration in (3, 4):
        with pytest.raises(PhaseRetry):
            fail(session, "learn", iteration, NumericError("the loss is nan"))
        assert is_skipped(session.context, session.context.run, 0, iteration)
    with pytest.raises(Paused, match=r"update 5 .*skip.*the loss is nan"):
        fail(session, "learn", 5, NumericError("the loss is nan"))
    assert not is_skipped(session.context, session.context.run, 0, 5)
    with pytest.raises(PhaseRetry):
        fail(session, "learn", 7, NumericError("one that was fine lies between"))


@pytest.mark.parametrize(("wanted", "raised"), [("pause", Paused), ("stop", None)])
def test_pause_and_stop(opened: Opened, wanted: str, raised: type[Exception] | None) -> None:
    session = opened(f"recovery.on_non_finite={wanted}")
    if raised is None:
        fail(session, "learn", 3, NumericError("the loss is nan"))
    else:
        with pytest.raises(raised, match=r"update 3 .*the loss is nan"):
            fail(session, "learn", 3, NumericError("the loss is nan"))
    assert not session.context.ledger.records.choices(session.context.run, 0, 3)


def test_a_rollback_opens_a_branch_that_draws_other_prompts(opened: Opened) -> None:
    session = opened("recovery.on_non_finite=rollback", "recovery.non_finite_limit=1")
    states = [commit(session, iteration) for iteration in range(5)]
    checkpoint(session, 0)
    checkpoint(session, 3)
    with pytest.raises(PhaseRetry):
        fail(session, "learn", 5, NumericError("the loss is nan"))
    assert obey_rollback(session, states[-1])
    assert session.context.branch == 1
    state = committed_state(session.context)
    assert state.iteration == 3
    assert state.cursor != states[3].cursor, "the prompts after the checkpoint are not drawn again"
    assert CURSOR in session.context.ledger.records.choices(session.context.run, 1, 4)
    assert not obey_rollback(session, state), "only once"
    with pytest.raises(Paused, match=r"update 4 .*rollback.*the loss is nan"):
        fail(session, "learn", 4, NumericError("the loss is nan"))


def test_a_rollback_skips_all_prompts_that_the_failed_iteration_drew(opened: Opened) -> None:
    session = opened("recovery.on_non_finite=rollback", "dynamic_sampling.kind=valid_group")
    states = [commit(session, iteration) for iteration in range(3)]
    checkpoint(session, 1)
    cursor = states[-1].cursor
    for wave, prompts in enumerate((20, 7)):
        plan_wave(session.context, 3, WavePlan(wave, prompts, prompts, 4, 8, 1.0), cursor)
        _, cursor = draw(session.context.spec.data, session.context.spec.seed, cursor, prompts)
    with pytest.raises(PhaseRetry):
        fail(session, "learn", 3, NumericError("the loss is nan"))
    assert obey_rollback(session, states[-1])
    assert committed_state(session.context).cursor == cursor
    assert cursor.ordinal == states[-1].cursor.ordinal + 27


def test_without_a_checkpoint_there_is_nothing_to_roll_back_to(opened: Opened) -> None:
    session = opened("recovery.on_non_finite=rollback")
    with pytest.raises(Paused, match="no checkpoint"):
        fail(session, "learn", 1, NumericError("the loss is nan"))
