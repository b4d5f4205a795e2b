"""How long a start takes is said from earlier starts of the home, or else as an estimate, and never ends a check."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.home import Home
from flows.run.lending import Reply
from flows.run.shared_environment import environment_digests
from flows.run.starts import SESSION_READY, Machine, SessionStart
from ops.preflight import start_forecast
from ops.preflight.start_forecast import StartForecast, forecast_start
from tests.spec.trees import spec
from yatt_core.planning.start import PREFECT, RAY, WARM_RAY, StartEstimate, StartParts, actors_of, engines_of
from yatt_core.protocols.receipts import InputsReceipt

SPEC = spec()
INPUTS = InputsReceipt(
    folder="inputs",
    model_path="",
    manifest_sha256="",
    data_digest="",
    train_prompts=900,
    held_out_prompts=300,
    probe_prompts=100,
    vocabulary=60,
    parameters=400_000,
)


@pytest.fixture(autouse=True)
def not_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("YATT_RAY_ADDRESS", raising=False)


def forecast(home: Home, shares_server: bool = False) -> StartForecast:
    return forecast_start(home, SPEC, INPUTS, inputs_seconds=0.5, shares_server=shares_server)


def record(home: Home, *seconds: float, services: tuple[str, ...] = (RAY, PREFECT)) -> None:
    parts = StartParts(
        services=services,
        engines=engines_of(SPEC),
        actors=actors_of(SPEC),
        parameters=INPUTS.parameters,
        prompts=INPUTS.prompts,
    )
    home.folder.mkdir(exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        for each in seconds:
            run = ledger.runs.create("test", {}, "digest", 1).id
            start = SessionStart(seconds=each, is_new=True, machine=Machine.this(), parts=parts)
            ledger.events.append(run, SESSION_READY, {"term": 1, **start.to_json()})


def test_earlier_starts_give_a_median_and_a_range(tmp_path: Path) -> None:
    home = Home(tmp_path)
    record(home, 19.0, 27.0, 22.0)
    found = forecast(home)
    assert found.line == "start: about 22 s (median of the last 3 starts like it in this home: 19 s to 27 s)"
    assert found.facts["seconds"] == 22.0
    assert sorted(found.facts["starts"]) == [19.0, 22.0, 27.0]
    assert found.facts["estimate"] is None
    assert forecast(home, shares_server=True).starts == (), "no Prefect server starts, so it is not like them"


def test_one_earlier_start_is_said_as_such(tmp_path: Path) -> None:
    record(Home(tmp_path), 19.0)
    assert forecast(Home(tmp_path)).line == "start: about 19 s (as the last start like it in this home)"


def test_a_new_home_has_an_estimate_and_stays_empty(tmp_path: Path) -> None:
    found = forecast(Home(tmp_path / "runs"))
    assert ", an estimate: " in found.line
    assert found.estimate is not None
    assert found.facts["seconds"] == found.facts["estimate"]["seconds"] > 0.0
    assert not (tmp_path / "runs").exists()


def test_a_ledger_that_cannot_be_read_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 100)
    found = forecast(Home(tmp_path))
    (warning,) = found.warnings
    assert warning.startswith("earlier starts are not known: ")
    assert found.estimate is not None


def test_of_a_cluster_that_exists_nothing_is_known_before_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YATT_RAY_ADDRESS", "10.0.0.1:6379")
    found = forecast(Home(tmp_path))
    assert found.seconds is None
    assert found.line.startswith("start: not known: ")


def test_a_warm_head_that_the_run_would_take_over_counts_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    warm = Reply(folder="clusters/host-0", environment=environment_digests())
    monkeypatch.setattr(start_forecast, "free_cluster", lambda home: warm)
    cold = forecast(home)
    found = forecast(home, shares_server=True)
    assert found.line.endswith("; with a warm Ray head of the service group")
    assert found.facts["warm_head"] is True
    assert cold.facts["warm_head"] is False
    assert cold.estimate is not None
    assert found.estimate is not None
    assert cold.estimate.cpu_seconds.keys() - found.estimate.cpu_seconds.keys() == {"ray", "fork_server", "prefect"}
    record(home, 20.0, services=(RAY,))
    record(home, 9.0, services=(WARM_RAY,))
    assert forecast(home, shares_server=True).starts == (9.0,)
    monkeypatch.setenv("A_KEY_OF_A_JUDGE", "secret")
    assert forecast(home, shares_server=True).starts == (20.0,), "the run would start a head of its own"


def test_what_was_not_measured_is_named() -> None:
    estimate = StartEstimate(seconds=30.0, cpu_seconds={"command": 5.0}, cores=1, not_counted=("vllm", "GPUs"))
    assert StartForecast((), estimate).line == (
        "start: about 30 s, an estimate: 5 CPU seconds on 1 core, no start like it in this home; vllm, GPUs not counted"
    )
