"""A soup in a real ledger, with simulated runs: killed anywhere, it ends with the same runs, figures and choice."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from db.core.errors import Fenced, LeaseHeld
from db.core.holder import this_process
from db.ledger import Ledger
from flows.members.driving import Goals
from flows.run.creation import current_spec
from flows.soups.record import POINT, SOUP, SoupRecord
from tests.db.tools import holder
from tests.flows.soups.support import Killed, Kitchen, drive_run
from tests.matrix import in_verify
from yatt_core.errors import ConfigurationError, DrivenElsewhereError, FencedError, InfrastructureError

CALLS = 21
"""Calls of driver and meter in an undisturbed soup: 7 runs, of which 2 are driven twice, and 12 measured models."""
FEW = (4, 18)
"""Calls in which it is killed in every test run: one in each kind of step."""
EVERY_CALL = [pytest.param(call, marks=[] if call in FEW else [pytest.mark.verify]) for call in range(1, CALLS + 1)]


def results(kitchen: Kitchen) -> object:
    with Ledger.open(kitchen.home.ledger) as ledger:
        record = SoupRecord.of(ledger, kitchen.soup)
        digests = [link.body["weights_digest"] for link in ledger.events.of_kind(kitchen.soup, POINT)]
        weights = {member: ledger.commits.latest(run).weights_digest for member, run in record.members().items()}
        assert len(ledger.runs.list()) == 1 + len(weights), "no member is created twice"
        assert all(ledger.events.verify(run.id) is None for run in ledger.runs.list())
        return record.facts(), record.hypervolumes(), digests, weights


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, inputs: Path) -> Kitchen:
    kitchen = Kitchen.of(tmp_path_factory.mktemp("soup") / "runs", inputs)
    kitchen.cook()
    return kitchen


def test_a_soup_trains_its_members_on_mixed_rewards(undisturbed: Kitchen) -> None:
    with Ledger.open(undisturbed.home.ledger) as ledger:
        record = SoupRecord.of(ledger, undisturbed.soup)
        assert SOUP.records(ledger) == [undisturbed.soup]
        weights = {}
        for member, run in record.members().items():
            spec = current_spec(ledger, run)
            weights[member.beta, member.objective] = [part.weight for part in spec.rewards.parts]
            assert SoupRecord.of(ledger, run).name == undisturbed.soup
    # Relative to the weights 2 and 1 of the runs' spec; the part that is no objective keeps its own.
    assert weights[0.8, 0] == pytest.approx([0.5, 1.6, 0.2]) and weights[0.8, 1] == pytest.approx([0.5, 0.4, 0.8])
    assert weights[1.0, 0] == [0.5, 2.0, 0.0] and len(weights) == 6
    assert undisturbed.calls == CALLS
    assert [until for _, until in undisturbed.driven] == [0, 2, 2, 2, 2, 10, 10, 10, 10]


@pytest.mark.parametrize("call", EVERY_CALL)
def test_a_soup_that_was_killed_ends_as_if_it_was_not(tmp_path: Path, undisturbed: Kitchen, call: int) -> None:
    kitchen = Kitchen.of(tmp_path / "runs", undisturbed.inputs)
    kitchen.killed_at = call
    with pytest.raises(Killed):
        kitchen.cook()
    kitchen.cook()
    assert results(kitchen) == results(undisturbed)
    assert kitchen.calls == CALLS + 1, "only the call in which it was killed is repeated"


def test_a_member_whose_creation_was_interrupted_is_completed(tmp_path: Path, undisturbed: Kitchen) -> None:
    kitchen = Kitchen.of(tmp_path / "runs", undisturbed.inputs)
    with mock.patch("flows.branching.branches.inherit", side_effect=Killed), pytest.raises(Killed):
        kitchen.cook()
    kitchen.cook()
    assert results(kitchen) == results(undisturbed)


def test_a_run_that_stops_early_ends_the_command_and_a_later_one_goes_on(tmp_path: Path, undisturbed: Kitchen) -> None:
    kitchen = Kitchen.of(tmp_path / "runs", undisturbed.inputs, betas=[0.7], rewarded_soup=False)

    def lazy(goals: Goals) -> None:
        for run, until in goals().items():
            drive_run(kitchen, run, min(until, 3))

    with pytest.raises(InfrastructureError, match="brew-2 is stopped at iteration 3 of 10"):
        kitchen.cook(lazy)
    kitchen.cook()
    with Ledger.open(kitchen.home.ledger) as ledger:
        assert len(SoupRecord.of(ledger, kitchen.soup).facts().points) == 3


@pytest.mark.parametrize("at", [10, *in_verify(2)])
def test_a_driver_killed_before_its_last_checkpoint_is_followed_by_one_that_takes_it(
    tmp_path: Path, undisturbed: Kitchen, at: int
) -> None:
    kitchen = Kitchen.of(tmp_path / "runs", undisturbed.inputs)

    def dying(goals: Goals) -> None:
        for run, until in goals().items():
            drive_run(kitchen, run, until, killed=until == at)

    with pytest.raises(InfrastructureError, match=f"at iteration {at} of {at}, without its checkpoint"):
        kitchen.cook(dying)
    kitchen.cook()
    assert results(kitchen) == results(undisturbed)


def test_two_commands_do_not_measure_at_a_time(tmp_path: Path, undisturbed: Kitchen) -> None:
    kitchen = Kitchen.of(tmp_path / "runs", undisturbed.inputs, betas=[0.7], rewarded_soup=False)

    def drive(goals: Goals) -> None:
        begun = 0 not in goals().values()
        kitchen.drive(goals)
        if begun:
            with Ledger.open(kitchen.home.ledger) as ledger:
                ledger.leases.acquire(kitchen.soup, this_process("yatt soup of another"), 600)

    with pytest.raises(LeaseHeld):
        kitchen.cook(drive)


def test_a_second_command_is_refused_while_one_drives_the_soup(tmp_path: Path, undisturbed: Kitchen) -> None:
    kitchen = Kitchen.of(tmp_path / "runs", undisturbed.inputs)

    def drive(goals: Goals) -> None:
        with pytest.raises(DrivenElsewhereError, match=f"soup {kitchen.soup} is driven by another process"):
            kitchen.cook()
        raise Killed

    with pytest.raises(Killed):
        kitchen.cook(drive)
    assert not kitchen.driven


def test_a_soup_that_another_host_has_taken_over_is_left_alone(tmp_path: Path, undisturbed: Kitchen) -> None:
    kitchen = Kitchen.of(tmp_path / "runs", undisturbed.inputs, betas=[0.7], rewarded_soup=False)
    subject = f"soup/{kitchen.soup}"

    def drive(goals: Goals) -> None:
        begun = 0 not in goals().values()
        kitchen.drive(goals)
        if begun:
            with Ledger.open(kitchen.home.ledger) as ledger:
                ledger.leases.take(subject, holder("yatt soup far away"), 600, lambda _: True)

    with pytest.raises((Fenced, FencedError), match=f"soup {kitchen.soup}: term 1 has ended; term 2 holds the lease"):
        kitchen.cook(drive)
    with Ledger.open(kitchen.home.ledger) as ledger:
        assert not ledger.events.of_kind(kitchen.soup, POINT), "nothing is recorded by a command that was replaced"
    with pytest.raises(DrivenElsewhereError, match="yatt soup far away"):
        kitchen.cook()


def test_a_run_of_no_soup_is_refused(undisturbed: Kitchen) -> None:
    with Ledger.open(undisturbed.home.ledger) as ledger:
        other = ledger.runs.create("other", {"tracking": {"tags": {}}}, "", 1).id
        with pytest.raises(ConfigurationError, match=undisturbed.soup):
            SoupRecord.of(ledger, other)
