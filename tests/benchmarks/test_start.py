"""The benchmark of starts tells the parts of a start apart by their command lines."""

from __future__ import annotations

import pytest

from benchmarks.start import OTHER, CpuMeter, part_of


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
