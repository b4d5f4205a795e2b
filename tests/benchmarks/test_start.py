"""The benchmark of starts tells the parts of a start apart by their command lines, and starts beside a service group at rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import start
from benchmarks.start import OTHER, Build, CpuMeter, Start, measured, part_of, rest


@pytest.mark.parametrize(
    ("command_line", "part"),
    [
        ("python -m ops.cli.main --home /tmp/runs train configs/quickstart.yaml --until 1", "command"),
        ("python -m yatt_core.supervisor.main /tmp/runs/quickstart-1", "supervisor"),
        ("python -m yatt_core.cluster.head --import-torch torch -- --head", "ray"),
        ("/venv/site-packages/ray/core/src/ray/gcs/gcs_server --log_dir=x", "ray"),
        ("python /work/yatt_core/cluster/worker_start.py --language=PYTHON", "ray"),
        ("ray::IDLE", "ray"),
        ("python -m yatt_core.cluster.fork_server --socket x", "fork_server"),
        ("python -m flows.prefect_io.prefect_serving server start", "prefect"),
        ("ray::TrainerActor.load", "TrainerActor"),
        ("ray::RuntimeEnvAgent", "ray"),
        ("python -m yatt_core.rewards.worker 38", "rewards"),
        ("nvidia-smi", OTHER),
    ],
)
def test_a_process_is_a_part_of_the_start(command_line: str, part: str) -> None:
    assert part_of(command_line) == part


def test_actors_count_as_the_mean_of_one_and_services_as_their_sum() -> None:
    meter = CpuMeter("home")
    meter.seconds = {(1, 0.0): 2.0, (2, 0.0): 4.0, (3, 0.0): 1.0, (4, 0.0): 0.5}
    meter.parts = {(1, 0.0): "TrainerActor", (2, 0.0): "TrainerActor", (3, 0.0): "ray", (4, 0.0): "ray"}
    assert meter.by_part == {"TrainerActor": 3.0, "ray": 1.5}


class BusyMeter(CpuMeter):
    """The processes of a home that work for some time and then rest."""

    def __init__(self, works_until: float) -> None:
        super().__init__("home")
        self.now = 0.0
        self.works_until = works_until

    def look(self) -> None:
        self.seconds = {(1, 0.0): min(self.now, self.works_until) + 0.05 * self.now}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_group_is_at_rest_once_its_processes_use_little_time() -> None:
    meter = BusyMeter(works_until=22.0)
    rest(meter, meter.clock, meter.sleep)
    assert 22.0 < meter.now < 40.0


def test_a_group_that_never_rests_is_an_error() -> None:
    meter = BusyMeter(works_until=1e9)
    with pytest.raises(RuntimeError, match="still busy"):
        rest(meter, meter.clock, meter.sleep)


@pytest.mark.parametrize("grouped", [False, True])
def test_the_second_start_and_the_sweep_are_beside_the_group(monkeypatch: pytest.MonkeyPatch, grouped: bool) -> None:
    told: list[str] = []

    @contextmanager
    def group(build: Build, home: Path) -> Iterator[None]:
        told.append("up")
        yield
        told.append("down")

    def start_once(build: Build, home: Path, spec: Path, run: str) -> Start:
        told.append(run)
        return Start(sft_begins_s=1.0, first_commit_s=2.0, cpu_s=3.0, over_work_s=4.0, parts={})

    def trial_starts(build: Build, home: Path) -> list[float]:
        told.append("sweep")
        return [5.0]

    for name, stand_in in {"group": group, "start_once": start_once, "trial_starts": trial_starts}.items():
        monkeypatch.setattr(start, name, stand_in)
    build = Build(start.ROOT, Path("python"))
    found = measured({"this": build}, start.ROOT / start.QUICKSTART, 1, whole=False, sweep=True, grouped=grouped)
    assert (found["this"]["first_commit_s_warm_over_work"], found["this"]["trial_start_s_over_work"]) == (4.0, 5.0)
    beside = ["quickstart-1", "up", "quickstart-2", "down", "up", "sweep", "down"]
    assert told == [each for each in beside if grouped or each not in ("up", "down")]
