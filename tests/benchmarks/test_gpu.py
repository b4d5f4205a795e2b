"""`benchmarks.gpu` with minimal sizes on the CPU, and its message if there is no GPU."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

import benchmarks.gpu
from benchmarks.gpu import Work, measure, measure_transfers, spec_of, training_flops
from yatt_core.planning.shape import shape_of

LEAST = Work(32, 2, 4, 2, 48, 64, prompts=2, samples=4, prompt=8, response=5, micro_batch_tokens=64, gemm=32)


def test_every_part_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.gpu, "ROUNDS", 1)
    torch.set_num_threads(1)
    report = measure(LEAST, 1e12)
    peaks = {"rollout_peak_gib", "train_peak_gib"}
    figures = dict(report.figures)
    rates = {"rollout_tokens_per_s", "train_tokens_per_s", "train_mfu", "train_gemm_fraction", "sync_gb_s"}
    assert figures.keys() == rates | peaks | {"offload_gb_s", "reload_gb_s", "parameters"}
    assert all(figures[name] is None for name in peaks), "the CPU's memory is not reported as a GPU's"
    assert all((figures[name] or 0.0) > 0.0 for name in figures.keys() - peaks)
    share = figures["train_gemm_fraction"]
    achieved = (figures["train_mfu"] or 0.0) * 1e12
    assert share == pytest.approx(achieved / (report.baselines["gemm_tflop_s_bf16"] * 1e12))


@pytest.mark.verify
def test_transfers_between_processes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.gpu, "ROUNDS", 1)
    found = measure_transfers(LEAST, {"cores": ("", ""), "missing": ()})
    assert (found["cores"] or 0.0) > 0.0 and found["missing"] is None


def test_the_model_has_about_a_billion_parameters() -> None:
    work = Work()
    shape = shape_of(spec_of(work), work.vocabulary)
    assert 0.95e9 < shape.parameters < 1.1e9


def test_operations_are_counted_for_computed_rows_only() -> None:
    work = replace(LEAST, response=2)
    shape = shape_of(spec_of(work), work.vocabulary)
    assert (work.rows, work.counted) == (2 * (8 + 4 * 1), 2 * 4 * 2)
    matrices = shape.layers * (shape.layer_matrices + shape.layer_norms) + shape.hidden
    attended = 2 * 8 * 4 + 8 * (8 + 1)
    forward = 2 * (24 * matrices + 16 * 64 * 32) + 4 * 2 * 32 * attended
    assert training_flops(shape, work) == pytest.approx(3 * forward)


def test_a_missing_gpu_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--json"])
    with pytest.raises(SystemExit) as ended:
        benchmarks.gpu.main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out
    assert "torch sees no GPU here" in said.err and "yatt doctor" in said.err
