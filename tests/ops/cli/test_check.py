"""`yatt check`: what a run would trip over is named within seconds, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.run.home import Home
from tests.ops.conftest import Yatt

VIRTUAL = {"engine": {"kind": "virtual"}}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    rows = [{"prompt": f"question {number}", "answer": str(number)} for number in range(30)]
    rows[5]["prompt"] += ", which is long"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree: dict[str, Any] = {
        "name": "checked",
        "data": {
            "sources": [{"kind": "jsonl", "path": "rows.jsonl"}],
            "prompts_per_iteration": 4, "logical_shards": 2, "held_out": 4, "probe": 2,
        },
        "rollout": VIRTUAL,
        "trainer": VIRTUAL,
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
    }  # fmt: skip
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_a_sound_spec_shows_prompts_scores_and_needs(yatt: Yatt, home: Home, spec: Path) -> None:
    answer = yatt("check", str(spec), "-o", "json")
    assert answer.code == 0, answer.err
    found = answer.document
    assert found["prompts"] == {"train": 24, "held_out": 4, "probe": 2}
    assert (found["over_long"], found["answerless"], found["longest_prompt"]["tokens"]) == (0, 0, 25)
    assert {(trial["given"], trial["score"]) for trial in found["trials"]} == {
        ("the reference answer", 1.0), ("nothing", 0.0), ("a number", 0.0), ("a sentence", 0.0),
    }  # fmt: skip
    assert not list(home.folder.iterdir()), "no run, no ledger, no inputs"
    assert "24 training, 4 held-out, 2 SFT probe" in yatt("check", str(spec)).out


def test_weights_go_through_no_object_store(yatt: Yatt, spec: Path) -> None:
    """The transport of earlier versions is refused to a new run, with what is to be seen to in its place."""
    refused = yatt("check", str(spec), "--set", "trainer.sync_transport=store")
    assert refused.code == 2
    assert "trainer.sync_transport: weights go from the trainer's ranks directly to the engines" in refused.err
    assert (
        "expected direct, for which the nodes must reach each other (`yatt check` says on which ports)" in refused.err
    )
    assert yatt("train", str(spec), "--set", "trainer.sync_transport=store").code == 2
    assert yatt("check", str(spec), "-o", "json").document["weight_ports"] is None, "virtual engines get no weights"


def test_on_which_ports_weights_go_is_said_for_engines_that_get_them(yatt: Yatt, spec: Path) -> None:
    engines = ("--set", "rollout.engine={kind: torch}", "--set", "trainer.engine={kind: torch, ranks: 1}")
    said = "\nweights go from the trainer to the engines over TCP ports "
    assert said in yatt("check", str(spec), *engines).out
    assert said not in yatt("check", str(spec)).out, "virtual engines get no weights"


def test_whether_a_run_is_exact_is_said(yatt: Yatt, spec: Path) -> None:
    assert "\nexact: " in yatt("check", str(spec)).out
    late = yatt("check", str(spec), "--set", "dynamic_sampling.deadline.seconds=60", "-o", "json").document
    assert not late["exact"]["holds"] and "dynamic_sampling.deadline" in late["exact"]["obstacles"][0]
    assert any(line.startswith("exact: auto: ") for line in late["warnings"])


def test_the_time_of_the_start_is_said(yatt: Yatt, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("YATT_RAY_ADDRESS", raising=False)
    start = yatt("check", str(spec), "-o", "json").document["start"]
    assert start["starts"] == []
    assert start["seconds"] == start["estimate"]["seconds"] > 0.0
    assert {"checks", "ray", "fork_server", "controller", "inputs"} <= start["estimate"]["cpu_seconds"].keys()
    assert "\nstart: about " in yatt("check", str(spec)).out


@pytest.mark.parametrize(
    ("named", "answered", "warned"), [(True, 0, True), (False, 29, True), (False, 0, False), (True, 30, False)]
)
def test_missing_answers_are_a_warning_where_some_are_promised(
    yatt: Yatt, spec: Path, named: bool, answered: int, warned: bool
) -> None:
    rows = [{"prompt": f"question {row}"} | ({"answer": "1"} if row < answered else {}) for row in range(30)]
    (spec.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = yaml.safe_load(spec.read_text())
    tree["rewards"] = {
        "parts": [{"name": "length", "function": "length_range", "options": {"minimum": 1, "maximum": 9}}]
    }
    tree["data"]["sources"][0] |= {"answer_field": "answer"} if named else {}
    spec.write_text(yaml.safe_dump(tree))
    answer = yatt("check", str(spec))
    assert answer.code == 0, answer.err
    assert (f"{30 - answered} of 30 prompts" in answer.err) is warned
    assert ("rows.jsonl:" in answer.err) is warned


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("raising", ["raised ValueError", "broken_rewards.py:"]),
        ("silent", ["returned NoneType, not a number"]),
        ("sleeping", ["took longer than 0.2 s"]),
    ],
)
@pytest.mark.parametrize("command", ["check", "train", "deploy"])
def test_a_reward_that_fails_is_named_with_its_place_before_anything_starts(
    yatt: Yatt, home: Home, spec: Path, command: str, function: str, says: list[str]
) -> None:
    parts = f"[{{name: mine, function: 'tests.rewards.broken_rewards:{function}', timeout_seconds: 0.2}}]"
    answer = yatt(command, str(spec), "--set", f"rewards.parts={parts}")
    assert answer.code == 2
    assert all(words in answer.err for words in (*says, "rewards.parts 'mine'", "0/train/rows.jsonl:"))
    assert not home.folder.exists() or not list(home.folder.glob("checked-*")), "no run was created"


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(
    ("code", "says"),
    [("x = 1\ndef score(:\n", "reward.py:2"), ("def scored(): ...\n", "did you mean 'scored'"), (None, "")],
)
def test_a_reward_file_that_cannot_be_used_is_named_before_anything_starts(
    yatt: Yatt, home: Home, spec: Path, command: str, code: str | None, says: str
) -> None:
    tree = yaml.safe_load(spec.read_text())
    spec.write_text(yaml.safe_dump({**tree, "rewards": {"parts": [{"name": "own", "file": "reward.py:score"}]}}))
    if code is not None:
        (spec.parent / "reward.py").write_text(code)
    answer = yatt(command, str(spec))
    assert answer.code == 2
    assert str(spec.parent / "reward.py") in answer.err and says in answer.err
    assert not list(home.folder.glob("*"))


def test_a_failure_that_only_marks_samples_is_shown(yatt: Yatt, spec: Path) -> None:
    parts = "[{name: mine, function: 'tests.rewards.broken_rewards:raising', on_failure: zero}]"
    answer = yatt("check", str(spec), "--set", f"rewards.parts={parts}", "-o", "json")
    assert answer.code == 0, answer.err
    assert all(
        trial["failed"] and trial["score"] is None and "broken_rewards.py:" in trial["place"]
        for trial in answer.document["trials"]
    )


def test_a_row_that_is_too_long_is_named(yatt: Yatt, spec: Path) -> None:
    answer = yatt("check", str(spec), "--set", "data.max_prompt_tokens=20")
    assert answer.code == 2 and "rows.jsonl:" in answer.err and "at most 20 fit" in answer.err
    skipped = yatt(
        "check", str(spec), "--set", "data.max_prompt_tokens=20", "--set", "data.over_long=skip", "-o", "json"
    )
    assert skipped.document["over_long"] == 1 and skipped.document["longest_prompt"]["tokens"] == 11


@pytest.mark.parametrize("command", ["check", "train"])
def test_what_is_wrong_in_different_places_is_reported_at_once(
    yatt: Yatt, home: Home, spec: Path, command: str
) -> None:
    rows = spec.parent / "rows.jsonl"
    lines = rows.read_text().splitlines()
    lines[3] = '{"prompt": ""}'
    lines[7] = '{"prompt": '
    rows.write_text("\n".join(lines))
    unknown = "rewards.parts.0.function=exact_mach"
    answer = yatt(command, str(spec), "--set", unknown, "--set", "rollout.tools={functions: [{name: a, function: b}]}")
    assert answer.code == 2
    for said in ("exact_mach", "'b'", "rows.jsonl:4: ", "rows.jsonl:8: "):
        assert said in answer.err
    assert not home.folder.exists() or not list(home.folder.iterdir())


def test_conversations_are_counted_and_the_first_is_shown(yatt: Yatt, home: Home, spec: Path) -> None:
    chat = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "2"}]
    rows = [{"prompt": [*chat, {"role": "user", "content": f"And {n}?"}], "answer": "3"} for n in range(30)]
    (spec.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = yatt("check", str(spec), "-o", "json")
    assert answer.code == 0, answer.err
    text = "user: How many?\n\nassistant: 2\n\nuser: And 2?"
    assert answer.document["conversations"] == 30
    assert answer.document["conversation"] == {"prompt_id": "0/train/rows.jsonl:3", "text": text}
    assert "    assistant: 2\n" in yatt("check", str(spec)).out


def with_rows(spec: Path, rows: list[dict[str, Any]], part: dict[str, Any]) -> str:
    """Writes rows and a reward; returns the path of the spec."""
    (spec.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = yaml.safe_load(spec.read_text())
    spec.write_text(yaml.safe_dump({**tree, "rewards": {"parts": [part]}}))
    return str(spec)


def test_every_reference_answer_is_parsed_not_only_the_first(yatt: Yatt, home: Home, spec: Path) -> None:
    answers = [rf"\frac{{1}}{{{n + 2}}}" if n != 27 else "}{" for n in range(30)]
    rows = [{"prompt": f"q {n}", "answer": answer} for n, answer in enumerate(answers)]
    path = with_rows(spec, rows, {"name": "right", "function": "math_equal"})
    answer = yatt("check", path)
    assert answer.code == 2
    assert "rewards.parts 'right': 1 of 30 rows cannot be used: row 0/" in answer.err and "rows.jsonl:28" in answer.err
    assert "trying the reference answers and tests of 30 rows" in answer.err
    rows[27]["answer"] = "7"
    path = with_rows(spec, rows, {"name": "right", "function": "math_equal"})
    sound = yatt("check", path, "-o", "json")
    assert sound.code == 0 and sound.document["rows_tried"] == {"tried": 30, "of": 30}
    assert [item.name for item in home.folder.iterdir()] == ["checks"]


@pytest.mark.parametrize("command", ["check", "train"])
def test_tests_that_test_nothing_are_refused_with_their_rows(yatt: Yatt, spec: Path, command: str) -> None:
    useless: list[Any] = [[{"input": "1", "output": ""}], ["assert True"], "def check(f):\n    assert f(1)", []]
    rows = [{"prompt": f"q {n}", "tests": [{"input": "1", "output": "2"}]} for n in range(30)]
    for row, tests in zip(rows[4:], useless, strict=False):
        row["tests"] = tests
    part = {"name": "code", "function": "code_tests", "timeout_seconds": 60.0, "options": {"isolation": "limits"}}
    answer = yatt(command, with_rows(spec, rows, part))
    assert answer.code == 2
    assert "rewards.parts 'code': 4 of 30 rows" in answer.err
    assert "rows.jsonl:5: its tests pass without any code" in answer.err


def test_a_sample_of_the_rows_is_called_a_sample(yatt: Yatt, spec: Path) -> None:
    rows = [{"prompt": f"q {n}", "answer": f"{n}"} for n in range(30)]
    path = with_rows(spec, rows, {"name": "right", "function": "math_equal"})
    answer = yatt("check", path, "--sample", "6")
    assert answer.code == 0, answer.err
    assert "sampled: the reference answers and tests of 6 of 30 rows were tried" in answer.out
    assert "sampled" not in yatt("check", path).out


def test_tests_that_the_rows_own_solutions_do_not_pass_are_named(yatt: Yatt, spec: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "prompt": f"Write f{n} to add {n}.",
            "tests": [f"assert f{n}(1) == {n + 1}"],
            "code": f"def f{n}(x): return x + {n}",
        }
        for n in range(30)
    ]
    part = {"name": "code", "function": "code_tests", "timeout_seconds": 60.0, "options": {"isolation": "limits"}}
    sound = yatt("check", with_rows(spec, rows, part))
    assert sound.code == 0 and "own solution" not in sound.err
    rows[2]["tests"] = ["assert f2(1) == 7"]
    rows[4] |= {"tests": ["assert False"], "code": ["def f4(x): return 0", "def f4(x): return x + 4"]}
    del rows[5]["code"]
    named = yatt("check", with_rows(spec, rows, part))
    assert named.code == 0, named.err
    assert "'code': the row's own solution does not pass the tests in 2 of 7 rows" in named.err
    assert "the first is 0/train/rows.jsonl:3 (key 'code')" in named.err


@pytest.mark.parametrize(("code", "warned"), [("1.0", True), ("0.0", True), ("float(len(response))", False)])
def test_a_reward_that_gives_the_same_to_everything_is_named(yatt: Yatt, spec: Path, code: str, warned: bool) -> None:
    (spec.parent / "reward.py").write_text(f"def score(prompt, response):\n    return {code}\n")
    tree = yaml.safe_load(spec.read_text())
    spec.write_text(yaml.safe_dump({**tree, "rewards": {"parts": [{"name": "own", "file": "reward.py:score"}]}}))
    answer = yatt("check", str(spec))
    assert answer.code == 0, answer.err
    assert ("rewards.parts 'own': gives" in answer.err) is warned


def test_contradicting_rows_are_named(yatt: Yatt, spec: Path) -> None:
    rows = [{"prompt": f"q {n // 2 if n < 14 else n}", "answer": f"{n}"} for n in range(30)]
    answer = yatt("check", with_rows(spec, rows, {"name": "exact", "function": "exact_match"}))
    assert answer.code == 0, answer.err
    assert (
        "2 of 30 rows are left out of training, because their prompts are equal to held-out or probe prompts"
        in answer.err
    )
    assert "another answer than in an earlier row with an equal prompt have 5 of 28 rows" in answer.err
