"""What is collected before its turn (`asynchrony.lag`): the iterations between the last commit and the newest experience.

Consumes the control state of the last commit, which names what was collected ahead, and what this session has collected
since. Produces what an iteration learns from, and one more iteration while it is learnt from. Which weights an iteration is
sampled under follows from the commits and the lag: those of the last commit at the time, which the engines hold until the
trainer has learnt and everything begun is sealed. So neither the clock nor a crash can change it.
"""

from __future__ import annotations

from flows.driver.session import DriverSession
from flows.phases.tasks import (
    begin_ahead,
    collect,
    collect_ahead,
    keep_trainer_devices,
    lend_trainer_devices,
    place,
)
from flows.phases.turn import BegunTurn, Turn
from flows.run.control_state import ControlState, InFlight


def take_turn(session: DriverSession, state: ControlState) -> Turn:
    """Returns what the next iteration learns from; collects whatever is to be collected before it is learnt from.

    Those are the iteration itself, with a lag above 1 the ones after it, and whatever was begun before the session recovered:
    the lag or the target may have become smaller since, and only the engines of now have the weights for the rest of it. What
    is sealed is only read.
    """
    iteration = state.iteration + 1
    session.ahead = {number: turn for number, turn in session.ahead.items() if number >= iteration}
    versions = {entry.iteration: entry.version for entry in state.in_flight}
    wanted = min(state.iteration + max(1, session.context.spec.asynchrony.lag), session.context.spec.iterations)
    if session.begun_until != state.ahead(session.context.spec):  # that one goes on beside the trainer
        wanted = max(wanted, session.begun_until)
    before = state
    for number in range(iteration, max(wanted, *versions, iteration) + 1):
        if number not in session.ahead:
            placement = place(session, number, before)
            version = versions.get(number, state.iteration)
            collected = collect(session, number, state=before, placement=placement, version=version)
            session.ahead[number] = Turn(number, placement, collected)
        before = _turn(session, number).after(before)
    return _turn(session, iteration)


def start_ahead(session: DriverSession, state: ControlState) -> BegunTurn | None:
    """Has the controllers begin with the iteration that is collected while the next one is learnt from, if there is one."""
    number = state.ahead(session.context.spec)
    if number is None or number in session.ahead:
        return None
    before = _turn(session, number - 1).after(state)
    placement = place(session, number, before)
    keep_trainer_devices(session)
    return BegunTurn(number, placement, begin_ahead(session, number, before, state.iteration))


def finish_ahead(session: DriverSession, state: ControlState, begun: BegunTurn | None) -> tuple[InFlight, ...]:
    """Waits for what was begun, and returns what is in flight after the iteration that was learnt from."""
    if begun is not None:
        lend_trainer_devices(session, begun.placement)
        collected = collect_ahead(session, begun.iteration, begun.placement, begun.gathering)
        session.ahead[begun.iteration] = Turn(begun.iteration, begun.placement, collected)
    return tuple(
        InFlight(number, _turn(session, number).collected.version)
        for number in sorted(session.ahead)
        if number > state.iteration + 1
    )


def _turn(session: DriverSession, number: int) -> Turn:
    turn = session.ahead[number]
    assert isinstance(turn, Turn)
    return turn
