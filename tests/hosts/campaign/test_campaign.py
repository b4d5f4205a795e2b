"""What a campaign reports; and, in `make verify`, a short one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.campaign.__main__ import campaign
from tests.hosts.campaign.faults import Kind, schedule
from tests.hosts.campaign.report import SOUND, holds, late_results
from tests.hosts.network import NoHostsError
from tests.recovery.ledger_watch import Attempt

KINDS = (Kind.DRIVER_POWER, Kind.LONG_PARTITION, Kind.PAIR_PARTITION, Kind.STORAGE)


def test_results_count_as_late_once_a_newer_driver_has_begun() -> None:
    first = Attempt(1, "DONE", 10, 20)
    failed = Attempt(1, "FAILED", 20, 90)
    newer = [Attempt(2, "DONE", 40, 50), Attempt(2, "DONE", 50, 60)]
    assert late_results([first, failed, *newer]) == 0
    assert late_results([first, failed, *newer, Attempt(1, "DONE", 30, 41)]) == 1


def test_any_harm_shows() -> None:
    told = {"digests_equal": 1, "audit_chain_sound": 1, "files_sound": 1, "stuck": [], "unasked_exits": []}
    told |= dict.fromkeys(("lost_iterations", "duplicate_iterations", "late_results"), 0)
    assert holds(told)
    harmed = [told | {key: 1} for key in ("lost_iterations", "duplicate_iterations", "late_results")]
    harmed += [told | {key: 0} for key in SOUND]
    harmed += [told | {"stuck": ["a fault"]}, told | {"unasked_exits": ["1: a driver ended"]}]
    assert not any(map(holds, harmed))


@pytest.mark.verify
@pytest.mark.timeout(1500)
def test_a_run_on_four_hosts_survives_lost_hosts(tmp_path: Path) -> None:
    said: list[str] = []
    faults = schedule(0, len(KINDS), KINDS, quick=True)
    try:
        told = campaign(tmp_path, faults, 0, 900.0, [], True, said.append)
    except NoHostsError as error:
        pytest.skip(str(error))
    assert holds(told), (told, said)
    assert told["host_faults"] == len(KINDS)
