"""Where the time of iterations goes: the critical path adds up to the driver's time, whatever was recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.reports.profile import ProfileStep, critical_path, process_steps, profile_of
from flows.run.profile_record import BETWEEN, PHASES, ProfilePart, ProfileRecord
from yatt_core.spent_time import DATA, ENGINE, KINDS, LEDGER, OTHER, PREFECT, RAY, REWARDS, WAITING


def part(phase: str, kind: str, seconds: float, *path: str) -> ProfilePart:
    return ProfilePart(phase, path, kind, seconds, 1)


LEARN = ProfileRecord(
    12.0,
    {
        "driver": (part("learn", RAY, 10.0), part("learn", LEDGER, 0.5), part("learn", PREFECT, 0.25), part(BETWEEN, OTHER, 1.0)),
        "trainer-0": (part("learn", ENGINE, 5.0), part("learn", WAITING, 1.0)),
        "trainer-1": (part("learn", ENGINE, 7.0), part("learn", DATA, 1.0)),
    },
)  # fmt: skip
COLLECT = ProfileRecord(
    11.0,
    {
        "driver": (part("collect", RAY, 10.0), part("collect", LEDGER, 1.0)),
        "controller-0": (part("collect", WAITING, 6.0), part("collect", REWARDS, 2.0), part("collect", DATA, 1.0)),
        "controller-1": (part("collect", WAITING, 1.0),),
        "rollout-0": (part("collect", ENGINE, 3.0, "generate"), part("collect", ENGINE, 1.0, "judge")),
        "rollout-1": (part("collect", ENGINE, 2.0, "generate"),),
        "trainer-0": (part("prepare", ENGINE, 50.0),),
    },
)


def test_what_the_driver_waits_for_is_the_work_of_the_busiest_rank_and_the_rest_is_ray() -> None:
    assert set(critical_path(LEARN)) == {
        ProfileStep("learn", "driver", LEDGER, 0.5),
        ProfileStep("learn", "driver", PREFECT, 0.25),
        ProfileStep(BETWEEN, "driver", OTHER, 1.0),
        ProfileStep("learn", "trainer-1", ENGINE, 7.0),
        ProfileStep("learn", "trainer-1", DATA, 1.0),
        ProfileStep("learn", "driver", RAY, 2.0),
    }


def test_what_the_busiest_controller_waits_for_is_the_work_of_the_busiest_engine() -> None:
    assert set(critical_path(COLLECT)) == {
        ProfileStep("collect", "driver", LEDGER, 1.0),
        ProfileStep("collect", "driver", RAY, 1.0),
        ProfileStep("collect", "controller-0", REWARDS, 2.0),
        ProfileStep("collect", "controller-0", DATA, 1.0),
        ProfileStep("collect", "controller-0", WAITING, 2.0),
        ProfileStep("collect", "rollout-0", ENGINE, 3.0),
        ProfileStep("collect", "rollout-0 as judge", ENGINE, 1.0),
    }


def test_work_beside_the_wait_counts_in_proportion() -> None:
    record = ProfileRecord(
        1.0,
        {
            "driver": (part("learn", RAY, 1.0),),
            "trainer-0": (part("learn", ENGINE, 3.0), part("learn", DATA, 1.0)),
        },
    )
    path = {step.kind: step.seconds for step in critical_path(record)}
    assert path == {ENGINE: pytest.approx(0.75), DATA: pytest.approx(0.25), RAY: pytest.approx(0.0)}


def test_the_remainder_is_what_has_no_name() -> None:
    profile = profile_of({3: LEARN})
    assert profile.wall == 12.0
    assert profile.accounted == pytest.approx(10.75)
    assert profile.not_accounted == pytest.approx(1.25), "a second between phases, and a quarter that nobody measured"


def test_a_process_row_divides_the_driver_s_wait_but_does_not_change_its_time() -> None:
    driver = {step.kind: step.seconds for step in profile_of({3: LEARN}).processes if step.process == "driver"}
    assert driver == {WAITING: 8.0, RAY: 2.0, LEDGER: 0.5, PREFECT: 0.25, OTHER: 1.0}


def test_iterations_without_a_record_count_nowhere_and_are_named() -> None:
    empty = ProfileRecord(2.0, {"driver": (part(BETWEEN, OTHER, 2.0),)})
    profile = profile_of({1: None, 2: None, 3: LEARN, 4: empty})
    assert (profile.recorded, profile.not_recorded) == ((3, 4), (1, 2))
    assert profile.wall == 7.0
    assert ProfileStep("learn", "trainer-1", ENGINE, 3.5) in profile.path
    assert profile.unheard == ("trainer-0", "trainer-1")
    nothing = profile_of({1: None})
    assert (nothing.recorded, nothing.not_recorded, nothing.processes, nothing.path) == ((), (1,), (), ())


NAMES = st.sampled_from(
    ["driver", "controller-0", "controller-1", "rollout-0", "rollout-10", "trainer-0", "endpoint-0"]
)
PARTS = st.builds(
    ProfilePart,
    st.sampled_from(PHASES),
    st.sampled_from([(), ("judge",), ("generate", "version 1")]),
    st.sampled_from(KINDS),
    st.floats(0.0, 100.0),
    st.integers(0, 9),
)
RECORDS = st.builds(
    ProfileRecord, st.floats(0.0, 1000.0), st.dictionaries(NAMES, st.lists(PARTS, max_size=8).map(tuple))
)


@given(RECORDS)
def test_the_critical_path_always_adds_up_to_the_driver_s_time(record: ProfileRecord) -> None:
    driver = sum(part.seconds for part in record.processes.get("driver", ()))
    steps = critical_path(record)
    assert sum(step.seconds for step in steps) == pytest.approx(driver, abs=1e-6)
    assert all(step.seconds >= -1e-9 for step in steps)


@given(RECORDS)
def test_no_process_is_shown_with_more_time_than_it_has_reported(record: ProfileRecord) -> None:
    reported = {name: sum(part.seconds for part in parts) for name, parts in record.processes.items()}
    shown = dict.fromkeys(reported, 0.0)
    for step in process_steps(record):
        shown[step.process.removesuffix(" as judge")] += step.seconds
    assert shown == pytest.approx(reported, abs=1e-6)
