"""The mistakes of a first hour: each is named by `yatt check`, and by `yatt train` before a run or a cluster exists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ops.cli.test_init import folder as folder_fixture
from tests.ops.conftest import Yatt

folder = folder_fixture
Mistake = Callable[[Path], list[str]]
"""Makes a mistake in a folder; returns the options that make it too."""


def rewrite_rows(folder: Path, number: int, **values: str | None) -> list[str]:
    rows = [json.loads(line) for line in (folder / "My rows.jsonl").read_text().splitlines()]
    rows[number] = {key: value for key, value in {**rows[number], **values}.items() if value is not None}
    (folder / "My rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return []


def with_reward(body: str) -> Mistake:
    def make(folder: Path) -> list[str]:
        (folder / "reward.py").write_text(f"def score(prompt, response):\n    {body}\n")
        return []

    return make


def without_an_answer(folder: Path) -> list[str]:
    with_reward("return len(prompt.answer)")(folder)
    return rewrite_rows(folder, 7, solution=None)


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda _: ["--set", "rollout.temprature=1"], ["rollout.temprature", "'temperature'"]),
        (lambda _: ["--set", "data.sources.0.path=rowz.jsonl"], ["data.sources.0.path", "rowz.jsonl"]),
        (lambda _: ["--set", "model.path=mod"], ["model.path", "mod"]),
        (with_reward("return 1 / len(response)"), ["ZeroDivisionError", "reward.py:2"]),
        (with_reward("pass"), ["NoneType", "'score'"]),
        (without_an_answer, ["My rows.jsonl:8", "no reference answer", "reward.py:2"]),
        (lambda folder: rewrite_rows(folder, 9, question="1 + " * 200), ["My rows.jsonl:10", "max_prompt_tokens"]),
        (lambda _: ["--set", "algorithm.mini_batches=40"], ["algorithm.mini_batches", "40"]),
        (lambda _: ["--set", "rollout.max_new_tokens=400"], ["max_new_tokens", "128"]),
    ],
    ids=["key", "data", "model", "raises", "none", "answer", "over-long", "batch", "context"],
)
def test_a_mistake_is_named_before_anything_starts(
    yatt: Yatt, folder: Path, command: str, mistake: Mistake, says: list[str]
) -> None:
    assert yatt("init", "--data", "My rows.jsonl", "--model", "model", "--reward", "new").code == 0
    answer = yatt(command, "my-rows.yaml", *mistake(folder))
    assert answer.code == 2, answer.err
    assert all(words in answer.err for words in says), answer.err
    assert not list(folder.glob("runs/my-rows-*")), "no run was created"


def without(folder: Path, key: str) -> list[str]:
    path = folder / "model" / "tokenizer_config.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key}))
    (folder / "model" / "chat_template.jinja").unlink(missing_ok=key == "chat_template")
    return []


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda folder: without(folder, "chat_template"), ["model.path", "chat template"]),
        (lambda folder: without(folder, "pad_token"), ["model.path", "padding token"]),
        (lambda _: ["--set", "algorithm.mini_batches=7"], ["algorithm.mini_batches", "7 does not divide"]),
    ],
    ids=["template", "padding", "uneven"],
)
def test_what_works_but_may_not_be_meant_is_said(yatt: Yatt, folder: Path, mistake: Mistake, says: list[str]) -> None:
    assert yatt("init", "--data", "My rows.jsonl", "--model", "model", "--reward", "new").code == 0
    answer = yatt("check", "my-rows.yaml", *mistake(folder), "-o", "json")
    assert answer.code == 0, answer.err
    assert any(all(words in warning for words in says) for warning in answer.document["warnings"])


def test_a_mistyped_run_is_answered_with_the_nearest_one(yatt: Yatt, sound_run: Path, tmp_path: Path) -> None:
    shutil.copytree(sound_run, tmp_path / "runs", dirs_exist_ok=True)
    run = yatt("runs", "-o", "json").document["runs"][0]["id"]
    answer = yatt("show", run[0] + run[2:])
    assert answer.code == 2 and run in answer.err
