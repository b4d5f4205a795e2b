"""The publish protocol on a disk that lies: after any crash, acknowledged data is there and nothing half-made counts.

The last tests prove that the others can fail: they notice if any single fsync of the product is left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.storage import TOLD, Crash, LyingDisk, missing, place_of_sync
from tests.storage_scenarios import SCENARIOS, StorageScenario
from yatt_core.errors import YattError

Ignored = Callable[[], bool]
SEEDS = range(1)
MANY_SEEDS = range(6)
by_name = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


class Bench:
    """Runs scenarios and crashes them, each in a temporary folder of its own."""

    def __init__(self, folder: Path, ignored: Ignored = lambda: False) -> None:
        self._folder = folder
        self._ignored = ignored
        self._count = 0

    def first(self, scenario: StorageScenario) -> list[Crash]:
        """Returns the crashes of the scenario on a fresh disk."""
        folder = self._fresh()
        folder.mkdir()
        disk = LyingDisk(folder, ignored=self._ignored)
        with disk.watched():
            scenario.run(folder, disk.acknowledge)
        shutil.rmtree(folder)
        return disk.crashes

    def second(self, scenario: StorageScenario, killed: Crash) -> list[Crash]:
        """Returns the crashes of the next process, after the first was killed."""
        folder = self._fresh()
        killed.killed(folder)
        disk = LyingDisk(folder, before=killed, ignored=self._ignored)
        with disk.watched():
            scenario.again(folder, disk.acknowledge)
        shutil.rmtree(folder)
        return disk.crashes

    def check(self, scenario: StorageScenario, crash: Crash, seed: int | None = None) -> str | None:
        """Returns what is wrong after a crash, or None. Without a seed, checks the worst state."""
        folder = self._fresh()
        crash.worst(folder) if seed is None else crash.seeded(folder, seed)
        try:
            scenario.check(folder, crash.acknowledged)
        except (AssertionError, YattError) as error:
            return f"{scenario.name}, seed {seed}, after {crash.step!r}, told {crash.acknowledged}: {error!r}"
        finally:
            shutil.rmtree(folder)
        return None

    def faults(self, scenario: StorageScenario, seeds: range = SEEDS) -> Iterator[str]:
        """Yields everything wrong after crashes of the first process, then after those of the second."""
        for crash in self.first(scenario):
            yield from (fault for seed in (None, *seeds) if (fault := self.check(scenario, crash, seed)))
        for killed in self.first(scenario):
            for crash in self.second(scenario, killed):
                if crash.step.startswith(TOLD) and (fault := self.check(scenario, crash)):
                    yield f"killed after {killed.step!r}, then {fault}"

    def _fresh(self) -> Path:
        self._count += 1
        return self._folder / str(self._count)


@pytest.mark.parametrize(
    "scenario",
    [s for s in SCENARIOS if s.name != "shard resumed in its term"],
    ids=lambda scenario: scenario.name,
)
def test_acknowledged_data_survives_any_crash(tmp_path: Path, scenario: StorageScenario) -> None:
    assert list(Bench(tmp_path).faults(scenario)) == []


@pytest.mark.verify
@pytest.mark.timeout(900)
@by_name
def test_crashes_after_every_step_of_two_processes_with_many_seeds(tmp_path: Path, scenario: StorageScenario) -> None:
    bench = Bench(tmp_path)
    assert list(bench.faults(scenario, MANY_SEEDS)) == []
    for killed in bench.first(scenario):
        for crash in bench.second(scenario, killed):
            assert [fault for seed in (None, 1) if (fault := bench.check(scenario, crash, seed))] == []


def places_of(tmp_path: Path, scenarios: Sequence[StorageScenario], twice: bool = False) -> list[str]:
    """Returns every product line that requests an fsync in these scenarios. twice: also in the second process."""
    seen: set[str] = set()

    def note() -> bool:
        seen.add(place_of_sync())
        return False

    bench = Bench(tmp_path, note)
    for scenario in scenarios:
        for killed in bench.first(scenario):
            if twice:
                bench.second(scenario, killed)
    return sorted(place for place in seen if "storage_scenarios" not in place)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_every_left_out_fsync_is_noticed(tmp_path: Path) -> None:
    found = places_of(tmp_path, SCENARIOS, twice=True)
    assert len(found) > 8, "the disk must see the protocol's fsyncs"
    unnoticed = []
    for place in found:
        bench = Bench(tmp_path, missing(place))
        if not any(next(bench.faults(scenario), None) for scenario in SCENARIOS):
            unnoticed.append(place)
    assert unnoticed == []


def test_a_missing_fsync_of_a_chunk_is_noticed(tmp_path: Path) -> None:
    shard = next(scenario for scenario in SCENARIOS if scenario.name == "shard")
    places_of_files = [place for place in places_of(tmp_path, [shard]) if place.startswith("durable.write_file")]
    for place in places_of_files:
        assert next(Bench(tmp_path, missing(place)).faults(shard), None)
    assert places_of_files


def test_the_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = LyingDisk(folder)
    with disk.watched():
        (folder / "file").write_bytes(b"not synced")
        (folder / "sub").mkdir()
        (folder / "file").rename(folder / "renamed")
    crash = disk.crashes[-1]
    assert list(crash.worst(tmp_path / "worst").iterdir()) == []
    seeded = {
        tuple(sorted(path.name for path in crash.seeded(tmp_path / f"seed-{seed}", seed).iterdir()))
        for seed in range(20)
    }
    assert {(), ("renamed", "sub"), ("file",)} <= seeded
