"""`benchmarks.algorithms`: it has every method, finished runs are kept, and its page shows what was found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from benchmarks.algorithms import __main__ as benchmark
from benchmarks.algorithms.cells import SPEC, Cells
from benchmarks.algorithms.methods import BASE_CHANGES, LEARNING_RATES, METHODS, Method, Teachers
from benchmarks.algorithms.pages import BEGIN, END, write_docs
from yatt_core.algorithms.advantages.registry import AdvantageSpec
from yatt_core.algorithms.corrections.registry import CorrectionSpec
from yatt_core.algorithms.entropy.registry import EntropySpec
from yatt_core.algorithms.losses.registry import LossSpec
from yatt_core.algorithms.shaping.registry import LengthPenaltySpec
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.presets import PRESETS

REGISTRIES = {
    "advantage": AdvantageSpec,
    "loss": LossSpec,
    "importance_correction": CorrectionSpec,
    "entropy": EntropySpec,
    "length_penalty": LengthPenaltySpec,
}
SMALL = ("model.hidden_size=32", "model.intermediate_size=48", "data.held_out=8", "data.prompts_per_iteration=8")


def spec_of(method: Method) -> RunSpec:
    teachers = Teachers(Path("/early"), Path("/late"))
    return load_spec(SPEC, [*BASE_CHANGES, *method.changes(10, teachers)])


@pytest.fixture(scope="module")
def specs() -> dict[str, RunSpec]:
    return {name: spec_of(method) for name, method in METHODS.items()}


def test_every_method_that_a_spec_can_name_is_compared(specs: dict[str, RunSpec]) -> None:
    for key, registry in REGISTRIES.items():
        (union, *_) = get_args(registry)
        known = {kind.model_fields["kind"].default for kind in get_args(union)} - {"custom"}
        chosen = [getattr(spec.algorithm, key) for spec in specs.values()]
        assert {each.kind for each in chosen if each is not None} == known, key
    kls = [spec.algorithm.kl for spec in specs.values() if spec.algorithm.kl is not None]
    assert {(kl.where, kl.formula) for kl in kls} == {
        (where, f"k{n}") for where in ("loss", "reward") for n in (1, 2, 3)
    }
    assert {method.preset for method in METHODS.values()} == {None, *PRESETS}
    assert len({spec.digest for spec in specs.values()}) == len(METHODS), "each is another run"


def test_the_runs_draw_the_same_prompts_and_differ_in_their_method(specs: dict[str, RunSpec]) -> None:
    base = specs["group_std"]
    for name, spec in specs.items():
        assert spec.data.model_copy(update={"max_prompt_tokens": 16}) == base.data, name
        steps = METHODS[name].steps
        assert (spec.iterations, spec.optimizer_steps_per_iteration) == (20 if steps == 1 else 10, steps), name
        assert (spec.trainer == base.trainer) == (steps not in LEARNING_RATES), name
        taught = spec.algorithm.distillation is not None
        assert (spec.rewards != base.rewards) == taught and (spec.rewards.parts[0].weight == 0) == taught, name
        assert (spec.rollout != base.rollout) == (name in ("corrected", "uncorrected")), name
    assert specs["corrected"].rollout == specs["uncorrected"].rollout
    cascade = specs["distillation_cascade"].algorithm.distillation
    assert cascade is not None and [len(cascade.of(iteration)) for iteration in range(1, 11)] == [1] * 10
    assert cascade.of(5)[0].model.path == "/early" and cascade.of(6)[0].model.path == "/late"


def test_terms_of_the_reward_do_not_outweigh_it(specs: dict[str, RunSpec]) -> None:
    """No right answer is penalised for its length as overlong, and what differs in every response is not divided."""
    longest = specs["group_std"].rollout.max_new_tokens
    right = np.array([4, 5], dtype=np.int64)
    overlong = [specs[name].algorithm.length_penalty for name in ("length_overlong", "preset_dapo")]
    assert [shaping.penalties(right, longest).tolist() for shaping in overlong if shaping] == [[0.0, 0.0]] * 2
    for name, spec in specs.items():
        algorithm = spec.algorithm
        varied = algorithm.length_penalty is not None and algorithm.length_penalty.kind == "linear"
        if varied or (algorithm.kl is not None and algorithm.kl.where == "reward"):
            assert algorithm.advantage.kind not in ("group_std", "gdpo"), name


def run(accuracy: float) -> dict[str, Any]:
    return {"accuracy_warmup": 0.2, "accuracy": accuracy, "sampled": [], "seconds": 9.0, "processor_seconds": 4.0}


def test_report_table_and_picture_show_the_runs(tmp_path: Path) -> None:
    runs = {"group_std": [run(0.4), run(0.5)], "cispo": [run(0.3), run(0.1)]}
    report = benchmark.report_of(runs, (0, 1), (0.0, 0.0))
    assert report.figures == pytest.approx(
        {"accuracy_warmup": 0.2, "accuracy_group_std": 0.45, "accuracy_cispo": 0.2, "accuracy_matched": 0.45}
    )
    page = tmp_path / "algorithms.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    for _ in range(2):
        write_docs(runs, (0, 1), tmp_path)
    rows = page.read_text().splitlines()
    assert (rows[0], rows[1], rows[-2], rows[-1]) == ("above", BEGIN, END, "below") and "old" not in rows
    assert rows[4:-2] == [
        "| advantage | `group_std` | 0.450 | 0.400, 0.500 | 2.25 | 4 |",
        "| loss | `cispo` | 0.200 | 0.300, 0.100 | 1.00 | 4 |",
    ]
    assert (tmp_path / "images" / "algorithms.png").read_bytes().startswith(b"\x89PNG")
    page.write_text("no place")
    with pytest.raises(ValueError, match=r"algorithms\.md"):
        write_docs(runs, (0, 1), tmp_path)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_runs_are_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ["group_std", "kl_adaptive", "distillation_cascade", "distillation_self", "corrected"]
    words = ["--json", "--seeds", "3", "--iterations", "2", "--work", str(tmp_path), "--methods", *methods]
    words += [part for change in (*SMALL, "sft.max_steps=3") for part in ("--set", change)]
    monkeypatch.setattr("benchmarks.algorithms.cells.SHOWN_SFT", {"demonstrations": 90, "max_steps": 3})
    monkeypatch.setattr(sys, "argv", ["benchmarks.algorithms", *words])
    benchmark.main()
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(report["figures"]) == {"accuracy_warmup", "accuracy_matched", *(f"accuracy_{name}" for name in methods)}
    assert {len(runs[0]["sampled"]) for runs in report["details"]["runs"].values()} == {2}
    monkeypatch.setattr(Cells, "_run", None)
    benchmark.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["figures"] == report["figures"]
