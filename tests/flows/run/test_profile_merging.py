"""The record of an iteration does not grow with the number of processes, and what it is read for stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.reports.profile import ProfileStep, critical_path, profile_of
from flows.run.profile_merging import KEPT, merged
from flows.run.profile_record import DRIVER, PHASES, ProfilePart, ProfileRecord, read_profile, write_profile
from yatt_core.experience.telemetry import write_telemetry
from yatt_core.spent_time import DATA, ENGINE, PARTS, RAY


def ranks(count: int, late: int = 0) -> ProfileRecord:
    """Returns an iteration in which rank k learns for k + 1 ms; one rank is the busiest in `prepare`, but idle otherwise.

    late: that rank.
    """
    processes = {DRIVER: (ProfilePart("learn", (), RAY, 2.0, 1), ProfilePart("prepare", (), RAY, 1.0, 1))}
    for rank in range(count):
        processes[f"trainer-{rank}"] = (
            ProfilePart("learn", ("learn",), ENGINE, 0.001 * (rank + 1), 1),
            ProfilePart("prepare", ("prepare",), DATA, 0.0001, 2),
        )
    processes[f"trainer-{late}"] = (ProfilePart("prepare", ("prepare",), DATA, 0.0002, 2),)
    return ProfileRecord(3.0, processes)


def test_few_processes_are_all_kept() -> None:
    record = ranks(KEPT)
    assert merged(record) == record


def test_of_many_the_busiest_are_kept_and_the_means_of_the_others() -> None:
    record = merged(ranks(100, late=3))
    kept = {name for name in record.processes if name != DRIVER}
    assert kept == {"trainer-3", *(f"trainer-{rank}" for rank in range(93, 100))}
    others = record.others["trainer"]
    assert others.count == 92
    learned = sum(0.001 * (rank + 1) for rank in range(93) if rank != 3) / 92
    assert others.parts == (
        ProfilePart("learn", ("learn",), ENGINE, pytest.approx(learned), 1),
        ProfilePart("prepare", ("prepare",), DATA, pytest.approx(0.0001), 2),
    )


def test_the_critical_path_is_that_of_all_processes() -> None:
    assert critical_path(merged(ranks(100, late=3))) == critical_path(ranks(100, late=3))


def test_a_file_does_not_grow_with_the_number_of_processes(tmp_path: Path) -> None:
    sizes = []
    for iteration, count in enumerate((50, 5000)):
        record = merged(ranks(count))
        write_profile(tmp_path, 0, iteration, record)
        (file,) = tmp_path.rglob(f"i{iteration:06}/telemetry.profile.json")
        sizes.append(file.stat().st_size)
    assert sizes[1] < 1.1 * sizes[0]


def test_too_many_parts_are_added_up_by_phase_and_kind() -> None:
    parts = tuple(
        ProfilePart(PHASES[number % 2], (f"part {number}",), ENGINE if number % 4 < 2 else DATA, float(number), 1)
        for number in range(3 * PARTS)
    )
    (found,) = merged(ProfileRecord(1.0, {"trainer-0": parts})).processes.values()
    assert len(found) == PARTS + 4
    for kind in (ENGINE, DATA):
        for phase in PHASES[:2]:
            chosen = (phase, kind)
            assert sum(one.seconds for one in found if (one.phase, one.kind) == chosen) == sum(
                one.seconds for one in parts if (one.phase, one.kind) == chosen
            )


def test_others_are_read_back_and_damaged_ones_are_no_record(tmp_path: Path) -> None:
    record = merged(ranks(20))
    write_profile(tmp_path, 0, 1, record)
    found = read_profile(tmp_path, 0, 1)
    assert found is not None and found.others["trainer"].count == 12
    assert found.processes.keys() == record.processes.keys()
    for damaged in ([], {"trainer": 3}, {"trainer": {"count": 0, "parts": {}}}, {"trainer": {"count": 2}}):
        write_telemetry(tmp_path, 0, 1, "profile", {"wall": 1.0, "processes": {}, "others": damaged})
        assert read_profile(tmp_path, 0, 1) is None, damaged


def test_a_process_that_only_one_iteration_records_has_the_mean_of_the_others_elsewhere() -> None:
    one = merged(ranks(100, late=3))
    other = merged(ranks(100, late=4))
    profile = profile_of({1: one, 2: other})
    assert profile.unheard == ()
    assert profile.others == {"trainer": 91}, "ranks 3 and 4 have names in both"
    learned = {step.process: step.seconds for step in profile.processes if step.phase == "learn"}
    mean = one.others["trainer"].parts[0].seconds
    assert learned["trainer-4"] == pytest.approx(mean / 2), "it was idle in the other one"
    assert ProfileStep("learn", "trainer-99", ENGINE, pytest.approx(0.1)) in profile.processes
