"""What works but may not be intended is said before a run starts."""

from __future__ import annotations

from pathlib import Path

from ops.preflight.remarks import remarks
from tests.inputs.example_specs import SPELL, run_spec
from tests.models.folders import CHATML, make_folder


def test_a_template_that_does_not_begin_the_models_turn_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    spec = run_spec(SPELL, model={"kind": "folder", "path": str(folder)})
    assert not any("add_generation_prompt" in line for line in remarks(spec))
    (folder / "chat_template.jinja").write_text(CHATML.partition("{% if add_generation_prompt %}")[0])
    (line,) = (line for line in remarks(spec) if "add_generation_prompt" in line)
    assert line.startswith("model.path: ") and "'<|im_start|>assistant'" in line


def test_random_weights_that_learn_from_nothing_are_named(tmp_path: Path) -> None:
    def said(**parts: object) -> list[str]:
        return [line for line in remarks(run_spec(SPELL, **parts)) if "random weights" in line]

    (line,) = said(sft=None)
    assert line.startswith("model: from_config ") and "set sft" in line
    assert said(sft={}) == []
    assert said(sft=None, rollout={"engine": {"kind": "virtual"}}, trainer={"engine": {"kind": "virtual"}}) == []
    folder = make_folder(tmp_path / "model")
    assert said(sft=None, model={"kind": "folder", "path": str(folder)}) == []


def test_a_deadline_that_has_passed_is_named() -> None:
    for year, count in ((2026, 1), (3026, 0)):
        spec = run_spec(SPELL, guards={"deadline": {"at": f"{year}-01-01T00:00:00+00:00", "action": "pause"}})
        found = [line for line in remarks(spec) if "guards.deadline.at" in line]
        assert len(found) == count and all("the run will pause at once" in line for line in found)


def test_what_keeps_a_run_from_being_exact_is_named() -> None:
    def said(**parts: object) -> list[str]:
        return [line for line in remarks(run_spec(SPELL, **parts)) if line.startswith("exact: ")]

    late = {"dynamic_sampling": {"deadline": {"seconds": 60}}}
    (line,) = said(**late)
    assert "dynamic_sampling.deadline" in line and "will not be exact" in line
    assert said(**late, exact=False) == said() == []


def test_streamed_learning_without_shards_to_learn_from_meanwhile_is_named() -> None:
    for shards, count in ((1, 1), (4, 0)):
        spec = run_spec(SPELL, asynchrony={"streamed": True}, data={"logical_shards": shards})
        assert len([line for line in remarks(spec) if line.startswith("asynchrony.streamed: ")]) == count


def test_a_lag_that_nothing_corrects_is_named_and_a_large_one_breaks() -> None:
    def said(**parts: object) -> list[str]:
        return [line for line in remarks(run_spec(SPELL, **parts)) if "nothing weighs" in line]

    (line,) = said(asynchrony={"lag": 2})
    assert line.startswith("asynchrony.lag: ") and "2 updates old" in line and "breaks" not in line
    (line,) = said(asynchrony={"lag": 3})
    assert "nothing clips the loss; from a lag of 3 on training breaks without" in line
    (line,) = said(rollout={"tail": {}})
    assert line.startswith("rollout.tail: ") and "4 updates old" in line and "breaks" in line
    for bounded in ({"importance_correction": {"kind": "truncate", "cap": 2.0}}, {"off_policy_mask": {"delta": 0.1}}):
        assert said(asynchrony={"lag": 3}, algorithm=bounded) == []
    assert said() == []
