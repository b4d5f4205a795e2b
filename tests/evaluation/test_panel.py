"""Panels of judges: how values are combined, what identifies a panel, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.evaluation.test_suites import opened, write_suite
from tests.judges.parts import TEMPLATE
from yatt_core.digests import path_digest
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.evaluation.answers import TaskBatch
from yatt_core.evaluation.panel import Panel, PanelScores, PanelSpec, panel_estimates
from yatt_core.evaluation.suites import load_suite
from yatt_core.judges.seeds import judgement_seeds
from yatt_core.judges.virtual import VirtualJudgeEngine
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.protocols.judges import JudgeItem, PartValue, aggregate
from yatt_core.spec.rewards.judges import VirtualJudge

FAST = {"kind": "virtual", "clock_factor": 1e9}


def judge(name: str, **changes: Any) -> dict[str, Any]:
    return {"kind": "generative", "name": name, "engine": FAST, "template": TEMPLATE, **changes}


def panel_of(*names: str, **changes: Any) -> PanelSpec:
    return PanelSpec.model_validate({"parts": [judge(name) for name in names], **changes})


def batch(start: int, *tasks: tuple[str, ...]) -> TaskBatch:
    """Returns a batch that has ended: the answers to each task."""
    prompts = [
        Prompt(0, start + i, f"w/{start + i}", f"say {start + i}", str(start + i), {}) for i in range(len(tasks))
    ]
    responses = [SimpleNamespace(completion=Completion(text, text, 1)) for answers in tasks for text in answers]
    return cast(
        TaskBatch,
        SimpleNamespace(
            rows=range(start, start + len(tasks)), prompts=prompts, dialogue=SimpleNamespace(responses=responses)
        ),
    )


def value(spec: PanelSpec, name: str, task: int, sample: int, text: str) -> float:
    """Returns a judge's value for one answer, asked alone."""
    part = next(each for each in spec.parts if each.name == name)
    seeds = judgement_seeds(name, part.judgements, 7, 0, 0, task, sample)
    verdict = VirtualJudgeEngine(part, VirtualJudge(clock_factor=1e9)).verdict(
        JudgeItem(0, f"say {task}", text, str(task), seeds)
    )
    return aggregate(part, verdict).value


@pytest.mark.parametrize("combine", ["mean", "majority"])
def test_each_judge_and_the_panel_have_their_values_for_each_task(combine: str) -> None:
    spec = panel_of("one", "two", "three", combine=combine, at_least=0.4)
    panel = Panel(spec, 7)
    answers = [("a", "b"), ("c", "d"), ("e", "f")]
    panel.take(batch(0, *answers[:2]))
    panel.take(batch(2, answers[2]))
    judged = panel.judge()
    seen = set()
    for task, (found, texts) in enumerate(zip(judged, answers, strict=True)):
        rows = [[value(spec, name, task, n, text) for name in ("one", "two", "three")] for n, text in enumerate(texts)]
        assert found.judges == pytest.approx(
            {name: sum(row[i] for row in rows) / 2 for i, name in enumerate(("one", "two", "three"))}
        )
        combined = [sum(row) / 3 if combine == "mean" else float(sum(v >= 0.4 for v in row) >= 2) for row in rows]
        assert found.panel == pytest.approx(sum(combined) / 2)
        seen.add(found.panel)
    assert len(seen) > 1


def test_half_of_the_judges_are_no_majority() -> None:
    panel = Panel(panel_of("one", "two", combine="majority", at_least=0.5), 0)
    assert [panel._combined(values) for values in ([0.5, 0.4], [0.5, 0.5], [0.0, 0.0])] == [0.0, 1.0, 0.0]
    assert panel._combined([None, 0.5]) == 1.0 and panel._combined([None, None]) is None


def test_figures_are_means_over_tasks_with_their_intervals() -> None:
    found = panel_estimates([PanelScores(1.0, {"one": 3.0}), PanelScores(0.0, {"one": 5.0})])
    assert (found["panel"].value, found["judge_one"].value) == (0.5, 4.0)
    assert panel_estimates([PanelScores(1.0, {"one": 3.0}), PanelScores(None, {"one": None})])["panel"].value == 1.0
    assert found["judge_one"].low == pytest.approx(4 - 1.96, abs=1e-3) and found["judge_one"].high > 5.9


def test_a_judge_that_fails_stops_counts_as_zero_or_is_left_out() -> None:
    def judged(on_failure: str) -> list[PanelScores]:
        part = judge("one", on_failure=on_failure)
        panel = Panel(PanelSpec.model_validate({"parts": [part]}), 0)
        lacking = batch(0, ("a",))
        panel.take(lacking)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "yatt_core.evaluation.panel.aggregate", lambda part, verdict: PartValue(0.0, "data: unreadable", "data")
            )
            return panel.judge()

    assert judged("zero") == [PanelScores(0.0, {"one": 0.0})]
    assert judged("mask") == [PanelScores(None, {"one": None})]
    with pytest.raises(DataError, match="judge 'one' failed on task 0, answer 0: data: unreadable"):
        judged("stop")


def test_the_digest_follows_the_judges_and_their_files(tmp_path: Path) -> None:
    digests = {
        panel_of("one").digest(),
        panel_of("two").digest(),
        panel_of("one", "two").digest(),
        panel_of("one", "two", combine="majority").digest(),
    }
    assert len(digests) == 4 and panel_of("one").digest() in digests
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a").write_text("1")
    before = path_digest(tmp_path / "model")
    (tmp_path / "model" / "a").write_text("2")
    assert path_digest(tmp_path / "model") != before


def test_a_suite_without_judges_keeps_its_digest_and_one_with_them_has_another(tmp_path: Path) -> None:
    plain = opened(write_suite(tmp_path)).digest
    assert opened(write_suite(tmp_path, judges=None)).digest == plain
    assert opened(write_suite(tmp_path, judges={"parts": [judge("one")]})).digest != plain


@pytest.mark.parametrize(
    ("judges", "said"),
    [
        ({"parts": []}, "judges.parts"),
        ({"parts": [judge("one"), judge("one")]}, "each name can be given to one judge only"),
        (
            {"parts": [judge("one", template="{steps}", parse={"kind": "wrong_steps"})]},
            "'one' names wrong steps",
        ),
        ({"parts": [judge("one")], "combine": "median"}, "judges.combine"),
        ({"parts": [{"kind": "generative", "name": "one", "template": TEMPLATE}]}, "a judge needs a model"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, judges: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_suite(write_suite(tmp_path, judges=judges))
