"""The benchmark of exactness finds kernels that add in another order, and its table is what the page and a plan say."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmarks.exact.__main__ as command
from benchmarks.exact import alignment
from benchmarks.exact.__main__ import (
    Place,
    key_of,
    measured_cells,
    prices_of,
    rates_of,
    trainers_here,
    vllm_price,
)
from benchmarks.exact.contract import resumed_run_is_the_same, smallest_differing_batch
from benchmarks.exact.work import PROMPT, TRAINERS, model_in, sampler_of, send, spec_of, trainer_of
from tests.engines.rollout.cases import VOCABULARY, build_model, vllm_case_of
from tests.matrix import in_verify
from tests.needs import NEEDS_VLLM, VLLM_DIFFERS_IN_BFLOAT16
from yatt_core.bfloat16.products import NATIVE
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.vllm.environment import engine_environment
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.planning.cluster import local_cluster, parse_cluster, read_cards
from yatt_core.planning.exact_prices import DEVICES, DTYPES, ENGINES, price_line, read_prices, table_lines, written
from yatt_core.spec.reading.load import override_spec

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_in(tmp_path_factory.mktemp("exact"))


def halves_first(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies as two halves of the inputs if there are few rows: the same sums in another order."""
    if len(states) > 8:
        return NATIVE.linear(states, weight, bias)
    middle = states.shape[1] // 2
    return NATIVE.linear(states[:, :middle], weight[:, :middle], bias) + NATIVE.linear(
        states[:, middle:], weight[:, middle:], None
    )


def sabotaged(runner: DenseRunner) -> None:
    runner._multiply = halves_first


def test_a_kernel_that_adds_few_rows_in_another_order_is_found(model: Path, tmp_path: Path) -> None:
    spec = spec_of("float32")
    engine = sampler_of(spec, model)
    send(trainer_of(spec, tmp_path, model), engine)
    assert smallest_differing_batch(engine) is None
    sabotaged(engine._runner)  # type: ignore[attr-defined]
    assert smallest_differing_batch(engine) == 1


def test_a_trainer_that_adds_in_an_order_of_its_process_is_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third trainer, which goes on from the checkpoint, rounds its gradients once more than the others."""
    optimizers: list[FlatAdamW] = []
    step = FlatAdamW.apply

    def rounded(self: FlatAdamW, learning_rate: float, loss: float) -> float:
        if self not in optimizers:
            optimizers.append(self)
        if optimizers.index(self) == 2:
            self.gradients.add_(1e-3).sub_(1e-3)
        return step(self, learning_rate, loss)

    assert resumed_run_is_the_same(spec_of("float32"), made_folder(tmp_path / "sound"), model)
    monkeypatch.setattr(FlatAdamW, "apply", rounded)
    assert not resumed_run_is_the_same(spec_of("float32"), made_folder(tmp_path / "sabotaged"), model)


def made_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_the_page_shows_the_shipped_table() -> None:
    """If it fails, put the lines of `table_lines(read_prices())` into docs/exactness.md."""
    page = (ROOT / "docs" / "exactness.md").read_text()
    assert "\n".join(table_lines(read_prices())) in page


def test_no_cell_of_the_table_is_a_guess() -> None:
    prices = read_prices()
    assert set(prices.cells) == {
        f"{dtype}_{engine}_{device}" for dtype in DTYPES for engine in ENGINES for device in DEVICES
    }
    for dtype in DTYPES:
        assert (prices.aligned[dtype] or 0.0) > 1.0
        for engine in ENGINES:
            on_gpus = prices.cell(dtype, engine, "cuda")
            assert (on_gpus.holds, on_gpus.price) == (None, None), "no GPU has run it"
        for engine in TRAINERS:
            run = prices.cell(dtype, engine, "cpu")
            assert run.holds and 0.9 < (run.price or 0.0) < 1.1, "measured_cells, which the next tests run"
    alike = prices.cell("float32", "vllm", "cpu")
    assert (alike.holds, alike.price) == (True, 1.0), "vllm_cells, and by construction"
    refused = prices.cell("bfloat16", "vllm", "cpu")
    assert (refused.holds, refused.price, prices.vllm_differs_from) == (False, None, {"float32": None, "bfloat16": 1})


def test_exact_is_no_setting_of_vllms_processes_on_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this construction its price there is 1, where it is not refused."""
    built = list[dict[str, Any]]()
    monkeypatch.setattr(
        "yatt_core.engines.rollout.served.engine.ServedRolloutEngine", lambda **given: built.append(given)
    )
    monkeypatch.setattr("yatt_core.engines.registry.check_available", lambda made: None)
    monkeypatch.setattr("yatt_core.engines.registry.longest_context", lambda made, path: PROMPT)
    vllm = "rollout.engine={kind: vllm, instances: 1, dtype: float32}"
    for exact in (True, "auto", False):
        build_rollout_engine(override_spec(spec_of("float32", exact=exact), (vllm,), "the test"), "models/a", ROOT)
    assert [given.pop("invariant") for given in built] == [True, False, False]
    assert built[0] == built[1] == built[2]
    assert engine_environment(processors=True, invariant=True) == engine_environment(processors=True)
    assert [vllm_price("cpu", holds=True), vllm_price("cpu", holds=False), vllm_price("cuda", holds=True)] == [
        1,
        None,
        None,
    ]


def test_rates_are_measured_side_by_side_and_the_first_round_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    took = list[str]()

    def work(name: str, seconds: float) -> None:
        nonlocal clock
        clock += 0.1 * seconds if not took.count(name) else seconds + (took.count(name) == 2)
        took.append(name)

    monkeypatch.setattr(command.time, "process_time", lambda: clock)
    monkeypatch.setattr(command, "ROUNDS", 4)
    rates = rates_of({"plain": lambda: work("plain", 2.0), "exact": lambda: work("exact", 4.0)})
    assert took == ["plain", "exact"] * 4
    assert rates == {"plain": pytest.approx(1 / 2.0), "exact": pytest.approx(1 / 4.0)}, "the best of rounds"


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_each_cell_that_runs_here_is_as_the_table_says(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ROUNDS", 3)
    figures = dict(measured_cells(Place(tmp_path, model, "cpu")))
    prices = read_prices()
    for dtype in DTYPES:
        assert (figures[f"aligned_price_{dtype}"] or 0.0) > 0.8
        for engine in trainers_here():
            assert figures[key_of("holds", dtype, engine, "cpu")] == float(prices.cell(dtype, engine, "cpu").holds or 0)
            price = figures[key_of("price", dtype, engine, "cpu")]
            assert price is not None and 0.5 < price < 2.0, "the same code"


@pytest.mark.parametrize("dtype", ["float32", *in_verify("bfloat16")])
def test_the_gap_of_an_aligned_trainer_is_0_and_that_of_others_is_seen(
    dtype: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "RESPONSES", 24)
    gap, tokens = alignment.aligned_gap_max(dtype, tmp_path / "aligned", model)
    assert gap == 0.0 and tokens > 24
    monkeypatch.setattr(alignment, "UPDATES", 0)
    monkeypatch.setattr(alignment, "spec_of", lambda dtype, exact: spec_of(dtype, exact=True))
    other, _ = alignment.aligned_gap_max(dtype, tmp_path / "other", model)
    assert other > 0.0


def test_a_plan_prints_the_price_of_its_engines() -> None:
    prices = read_prices()
    cores = local_cluster(read_cards())
    torch_alone = spec_of("float32")
    assert "torch in float32 " in price_line(torch_alone, cores, prices) and "on processors" in price_line(
        torch_alone, cores, prices
    )
    said = price_line(spec_of("bfloat16", exact="aligned"), cores, prices)
    assert f"torch with torch in bfloat16 {1 / (prices.aligned['bfloat16'] or 1):.0%} of that without" in said
    on_gpus = price_line(torch_alone, parse_cluster("8xH200", read_cards()), prices)
    assert "torch in float32 not measured on GPUs" in on_gpus
    assert price_line(spec_of("float32", exact=False), cores, prices).startswith("exact: the run is not exact")


def test_the_price_of_vllm_by_default_follows_the_planned_devices() -> None:
    prices = read_prices()
    vllm = override_spec(
        spec_of("float32", exact="auto"), ("rollout.engine={kind: vllm, instances: 1, dtype: float32}",), "the test"
    )
    assert "vllm in float32" in price_line(vllm, local_cluster(read_cards()), prices)
    on_gpus = price_line(vllm, parse_cluster("8xH200", read_cards()), prices)
    assert on_gpus.startswith("exact: the run is not exact"), "auto leaves vLLM's kernels as they are there"


def test_the_table_is_made_of_the_figures() -> None:
    cells = [(dtype, engine, device) for dtype in DTYPES for engine in ENGINES for device in DEVICES]
    figures: dict[str, float | None] = {key_of(what, *cell): None for cell in cells for what in ("holds", "price")}
    figures |= {"holds_bfloat16_vllm_cpu": 0.0, "smallest_batch_bfloat16_vllm_cpu": 2.0, "aligned_price_float32": 1.504}
    figures |= {"holds_float32_torch_cpu": 1.0, "price_float32_torch_cpu": 1.004}
    made = prices_of(figures)
    assert made.cell("float32", "torch", "cpu").model_dump() == {"holds": True, "price": 1.0}
    assert made.aligned == {"float32": 1.5, "bfloat16": None}
    (line,) = (line for line in table_lines(made) if "vLLM" in line)
    assert "refused: a batch of 2 differs from a crowd" in line
    assert line.count("not run (no GPU)") == 2 and line.count("not run") == 3
    assert "holds_float32" not in written(made) and "float32_torch_cpu" in written(made)


@NEEDS_VLLM
@pytest.mark.verify
def test_vllm_in_bfloat16_answers_differently_already_alone(tmp_path: Path) -> None:
    """What the refusal of continuous batching in bfloat16 says of some processors."""
    folder = tmp_path / "model"
    build_model(folder, "wide")
    case = vllm_case_of(folder, dtype="bfloat16")
    with closing(case.engine):
        case.engine.update_weights(case.weights(0), 0)
        smallest = smallest_differing_batch(case.engine, VOCABULARY)
        assert smallest == 1 if VLLM_DIFFERS_IN_BFLOAT16 else smallest in (1, None)
