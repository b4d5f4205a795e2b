"""What a driver records of an iteration's time: its own and its actors', from one commit to the next."""

from __future__ import annotations

from pathlib import Path

from flows.driver.iteration_profile import IterationProfile
from flows.run.profile_record import BETWEEN, DRIVER, ProfilePart, ProfileRecord, read_profile, write_profile
from yatt_core.actors.use_meter import ProcessUse
from yatt_core.experience.telemetry import write_telemetry
from yatt_core.protocols.receipts import Holdings
from yatt_core.spent_time import ENGINE, LEDGER, OTHER, PREFECT, SpentTime, spent


class Hands:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def use(*parts: SpentTime) -> ProcessUse:
    return ProcessUse(None, Holdings(), parts)


def test_the_driver_s_parts_add_up_to_the_time_from_commit_to_commit(tmp_path: Path) -> None:
    clock = Hands()
    profile = IterationProfile(clock)
    with profile.open():
        clock.now += 100.0
        profile.discard()
        with spent(PREFECT, "commit_start"):
            clock.now += 1.0
            with spent(OTHER, DRIVER), spent(LEDGER, "write"):
                clock.now += 2.0
        with spent(PREFECT, "report"):
            clock.now += 4.0
        clock.now += 8.0
        profile.close(tmp_path, 0, 0)
        clock.now += 16.0
        profile.close(tmp_path, 0, 1)
    first = read_profile(tmp_path, 0, 0)
    assert first is not None and first.wall == 15.0
    assert set(first.processes[DRIVER]) == {
        ProfilePart("commit", (), PREFECT, 1.0, 1),
        ProfilePart("commit", (DRIVER,), OTHER, 0.0, 1),
        ProfilePart("commit", (DRIVER, "write"), LEDGER, 2.0, 1),
        ProfilePart(BETWEEN, ("report",), PREFECT, 4.0, 1),
        ProfilePart(BETWEEN, (), OTHER, 8.0, 0),
    }
    second = read_profile(tmp_path, 0, 1)
    assert second is not None and second.wall == 16.0
    assert ProfilePart(BETWEEN, (), OTHER, 16.0, 0) in second.processes[DRIVER]


def test_calls_of_actors_belong_to_phases_and_those_that_are_part_of_no_iteration_are_left_out(tmp_path: Path) -> None:
    profile = IterationProfile()
    profile.hear({"trainer-0": use(SpentTime(("load",), OTHER, 9.0, 1))})
    profile.discard()
    profile.hear(
        {
            "rollout-0": use(
                SpentTime(("generate", "version 4"), ENGINE, 1.0, 2),
                SpentTime(("generate", "version 5"), ENGINE, 2.0, 2),
                SpentTime(("judge",), ENGINE, 4.0, 1),
                SpentTime(("load",), OTHER, 8.0, 1),
            )
        }
    )
    profile.close(tmp_path, 0, 5)
    record = read_profile(tmp_path, 0, 5)
    assert record is not None
    assert "trainer-0" not in record.processes
    assert set(record.processes["rollout-0"]) == {
        ProfilePart("collect", ("generate", "version 4"), ENGINE, 1.0, 2),
        ProfilePart("evaluate", ("generate", "version 5"), ENGINE, 2.0, 2),
        ProfilePart("collect", ("judge",), ENGINE, 4.0, 1),
    }


def test_a_record_is_read_back_and_one_that_is_missing_or_damaged_is_none(tmp_path: Path) -> None:
    record = ProfileRecord(
        2.5, {"driver": (ProfilePart("learn", ("driver", "read"), LEDGER, 0.25, 3),), "trainer-0": ()}
    )
    assert read_profile(tmp_path, 0, 1) is None
    write_profile(tmp_path, 0, 1, record)
    assert read_profile(tmp_path, 0, 1) == record
    for damaged in (
        {},
        {"wall": -1.0, "processes": {}},
        {"wall": 1.0, "processes": []},
        {"wall": 1.0, "processes": {"driver": {"learn|ledger": "x 1"}}},
        {"wall": 1.0, "processes": {"driver": {"learn|unknown": "1.0 1"}}},
        {"wall": 1.0, "processes": {"driver": {"dance|ledger": "1.0 1"}}},
        {"wall": 1.0, "processes": {"driver": {"learn|ledger": "nan 1"}}},
    ):
        write_telemetry(tmp_path, 0, 1, "profile", damaged)
        assert read_profile(tmp_path, 0, 1) is None, damaged
