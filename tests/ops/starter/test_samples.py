"""What `yatt init` writes for files in the shapes of the field means what they mean, at the first try and as written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ops.conftest import Yatt
from tests.ops.starter import sample_files as files
from tests.ops.starter.reading import score, written
from tests.ops.starter.sample_cases import CASES, SUM, TOTAL, Means
from yatt_core.datasets.sources import Collection, collect_prompts
from yatt_core.spec import RunSpec


def check_rows(means: Means, spec: RunSpec, rows: Collection) -> None:
    """Checks the first row, as the run reads it."""
    first = next(iter(rows.train[0]))
    assert means.text in ("", first.text)
    assert all(part in first.text for part in means.has), first.text
    assert tuple(message.content for message in first.reply) == means.reply
    if not means.reply:
        assert first.answer == means.answer
    assert len(first.media) == (1 if means.model == "vision" else 0)
    assert bool(first.tools) == (means.model == "tools")
    if means.function:
        assert score(spec, first, means.right) == 1.0
        assert score(spec, first, means.wrong) == 0.0


@pytest.mark.parametrize("name", CASES)
def test_the_spec_means_what_the_file_means(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path], name: str
) -> None:
    means = CASES[name]
    spec, text, said = written(yatt, tmp_path, means.write(tmp_path / "data"), model(means.model))
    assert (spec.objective.kind if spec.objective else "rl") == means.objective == said["objective"]
    source = spec.data.sources[0].model_dump()
    assert {key: source[key] for key in means.source} == means.source
    assert [part.function for part in spec.rewards.functions] == ([means.function] if means.function else [])
    assert (spec.data.system_prompt or "") == means.system
    rows = collect_prompts(spec.data, spec.seed, with_probe=False)
    assert means.held_out in (None, len(rows.held_out))
    assert (means.held_out is not None) == any(line.lstrip().startswith("held_out_") for line in text.splitlines())
    check_rows(means, spec, rows)
    for key in means.unused:
        assert key in text and key in str(said["sources"])
    checked = yatt("check", str(tmp_path / "run" / "sample.yaml"), "-o", "json")
    assert checked.code == 0, checked.err


def test_repeated_questions_are_not_held_out_and_trained(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    spec, _, _ = written(yatt, tmp_path, files.dapo(tmp_path / "data"), model("plain"))
    rows = collect_prompts(spec.data, spec.seed, with_probe=False)
    held_out = {prompt.text for prompt in rows.held_out}
    assert held_out and not held_out & {prompt.text for prompt in rows.train[0]}


def test_calls_of_functions_are_tested_beside_programs(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    spec, _, _ = written(yatt, tmp_path, files.apps(tmp_path / "data"), model("plain"))
    rows = list(collect_prompts(spec.data, spec.seed, with_probe=False).train[0])
    calling = next(prompt for prompt in rows if "fn_name" in prompt.entry["input_output"])
    assert "def total(self, xs):" in calling.text
    assert (score(spec, calling, TOTAL), score(spec, calling, SUM)) == (1.0, 0.0)


def test_alpaca_inputs_and_system_messages_are_part_of_the_prompt(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]
) -> None:
    spec, _, _ = written(yatt, tmp_path, files.alpaca(tmp_path / "data"), model("plain"))
    texts = [prompt.text for prompt in collect_prompts(spec.data, spec.seed, with_probe=False).train[0]]
    assert texts[:2] == ["Say it as a question.", "Say it as a question.\n\nRope 1 is wet."]


def test_system_messages_that_are_empty_are_left_out(yatt: Yatt, tmp_path: Path, model: Callable[[str], Path]) -> None:
    spec, _, _ = written(yatt, tmp_path, files.orca(tmp_path / "data"), model("plain"))
    prompts = list(collect_prompts(spec.data, spec.seed, with_probe=False).train[0])[:2]
    assert [[message.role for message in prompt.messages] for prompt in prompts] == [[], ["system", "user"]]


@pytest.mark.parametrize(
    ("write", "says"),
    [(files.geometry, "vision tower"), (files.openai_tools, "does not write them")],
)
def test_what_the_model_cannot_do_is_refused_by_name(
    yatt: Yatt, tmp_path: Path, model: Callable[[str], Path], write: Callable[[Path], Path], says: str
) -> None:
    answer = yatt("init", str(tmp_path / "run"), "--data", str(write(tmp_path)), "--model", str(model("plain")))
    assert (answer.code, says in answer.err) == (2, True), answer.err
    assert not (tmp_path / "run").exists()
