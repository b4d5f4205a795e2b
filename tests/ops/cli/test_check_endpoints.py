"""`yatt check` asks each endpoint that judges one question: address, model, key, and an answer that can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.judges.server import KEY, Reply, completion, serving
from tests.ops.conftest import Yatt

VIRTUAL = {"engine": {"kind": "virtual"}}
Serve = Callable[[dict[str, Any], int], Reply]


def write_spec(folder: Path, url: str, **part: Any) -> Path:
    rows = [{"prompt": f"question {number}", "answer": f"answer {number}"} for number in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge = {
        "kind": "endpoint", "name": "tone", "url": url, "model": "judge-7b", "seeded": True,
        "template": "Is it right? {prompt} {response}", **part,
    }  # fmt: skip
    tree = {
        "name": "checked",
        "data": {
            "sources": [{"kind": "jsonl", "path": "rows.jsonl"}],
            "prompts_per_iteration": 4, "logical_shards": 2, "held_out": 4, "probe": 2,
        },
        "rollout": VIRTUAL,
        "trainer": VIRTUAL,
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}, judge]},
    }  # fmt: skip
    (folder / "spec.yaml").write_text(yaml.safe_dump(tree))
    return folder / "spec.yaml"


@pytest.mark.parametrize(("said", "score"), [("Yes.", 1.0), ("No", 0.0)])
def test_the_answer_is_in_the_table_and_nothing_is_asked_offline(
    yatt: Yatt, tmp_path: Path, said: str, score: float
) -> None:
    with serving(lambda body, number: Reply(body=completion(said))) as server:
        spec = write_spec(tmp_path, server.url)
        answer = yatt("check", str(spec), "-o", "json")
        assert answer.code == 0, answer.err
        (trial,) = (each for each in answer.document["trials"] if each["part"] == "tone")
        assert (trial["score"], trial["error"], trial["prompt_id"]) == (score, "", "0/train/rows.jsonl:1")
        (body,) = server.bodies
        assert body["model"] == "judge-7b" and body["messages"][0]["content"].startswith(
            "Is it right? question 0 answer 0"
        )
        assert yatt("check", str(spec), "--offline").code == 0
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("reply", "part", "code", "says"),
    [
        (Reply(status=404), {}, 2, "(not found); check url and model 'judge-7b'"),
        (
            Reply(status=401),
            {"credential": {"env": "JUDGE_KEY"}},
            2,
            "(not authorised); check the key in the environment variable JUDGE_KEY",
        ),
        (Reply(status=403), {}, 2, "(not authorised); check whether it needs a key (credential)"),
        (Reply(400, {"error": {"message": f"use another {KEY}", "param": "max_tokens"}}), {}, 2,
         "(it does not support max_tokens); set max_tokens_field: max_completion_tokens"),
        (Reply(400, {"error": {"message": "'temperature' does not support 1"}}), {}, 2, "set send_temperature: false"),
        (Reply(status=302), {}, 2, "(moved); redirects are not followed"),
        (Reply(body="not a completion"), {}, None, "not a chat completion"),
        (Reply(status=503), {}, None, "status 503; `yatt check --offline` asks no endpoint"),
        (Reply(body=completion("no idea, honestly")), {"on_unparsed": "error", "parse": {"kind": "number"}}, 2,
         "parse (number) finds no score in the answer 'no idea, honestly'"),
        (Reply(body=completion("no idea, honestly")), {"parse": {"kind": "number"}}, 0,
         "warning: rewards.parts 'tone': parse (number) finds no score in the answer 'no idea, honestly'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_endpoint_is_told_after_one_request(
    yatt: Yatt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reply: Reply,
    part: dict[str, Any],
    code: int,
    says: str,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with serving(lambda body, number: reply) as server:
        answer = yatt("check", str(write_spec(tmp_path, server.url, **part)))
        assert len(server.bodies) == 1
    assert answer.code == code if code is not None else answer.code not in (0, 2)
    assert says in answer.err and KEY not in answer.err + answer.out


@pytest.mark.parametrize("down", ["first", "second"])
def test_an_endpoint_that_is_silent_while_another_one_answers_is_a_warning(
    yatt: Yatt, tmp_path: Path, down: str
) -> None:
    with (
        serving(lambda body, number: Reply(status=503)) as silent,
        serving(lambda *_: Reply(body=completion("Yes"))) as up,
    ):
        first, second = (silent, up) if down == "first" else (up, silent)
        spec = write_spec(tmp_path, first.url, fallbacks=[{"url": second.url}])
        answer = yatt("check", str(spec), "-o", "json")
        assert answer.code == 0, answer.err
        (told,) = [line for line in answer.document["warnings"] if "'tone'" in line]
        assert f"{silent.url}: status 503" in told and up.url not in told
        (trial,) = (each for each in answer.document["trials"] if each["part"] == "tone")
        assert (trial["score"], trial["error"]) == (1.0, "")
    gone = yatt("check", str(spec))
    assert gone.code not in (0, 2) and silent.url in gone.err and up.url in gone.err, "none answers"


def test_a_score_that_was_not_found_is_not_0(yatt: Yatt, tmp_path: Path) -> None:
    with serving(lambda body, number: Reply(body=completion("no idea"))) as server:
        spec = write_spec(tmp_path, server.url, parse={"kind": "number"})
        (trial,) = (
            each for each in yatt("check", str(spec), "-o", "json").document["trials"] if each["part"] == "tone"
        )
        text = yatt("check", str(spec)).out
    assert trial["score"] is None and trial["failed"]
    (row,) = [line for line in text.splitlines() if line.lstrip().startswith("tone")]
    assert " - " in row and " 0 " not in row


def test_an_address_where_nothing_listens_is_named(yatt: Yatt, tmp_path: Path) -> None:
    with serving(lambda body, number: Reply()) as server:
        url = server.url
    answer = yatt("check", str(write_spec(tmp_path, url)))
    assert answer.code not in (0, 2) and f"{url}: cannot be reached" in answer.err
    assert yatt("check", str(write_spec(tmp_path, url)), "--offline").code == 0


def test_mistakes_of_the_data_are_told_beside_those_of_the_endpoint(yatt: Yatt, tmp_path: Path) -> None:
    with serving(lambda body, number: Reply(status=404)) as server:
        spec = write_spec(tmp_path, server.url)
        answer = yatt("check", str(spec), "--set", "data.max_prompt_tokens=3")
    assert answer.code == 2 and "data.max_prompt_tokens" in answer.err


SERVING = (
    "yatt",
    "ops.scheduled",
    "ops.dashboard.starting",
    "ops.dashboard.app",
    "ops.cli.commands.services.dashboard",
)


def test_processes_that_serve_http_cannot_ask() -> None:
    """One process imports them one after another, and says which of them brought the module along."""
    ask = (
        f"import sys, importlib\nfor name in {SERVING!r}:\n    importlib.import_module(name)\n"
        "    if 'ops.preflight.endpoint_trial' in sys.modules:\n        print(name)\n"
    )
    found = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_only_the_command_check_names_the_module_that_asks() -> None:
    root = Path(__file__).parents[3]
    naming = [
        path.relative_to(root).as_posix()
        for package in ("ops", "flows", "yatt", "yatt_core")
        for path in (root / package).rglob("*.py")
        if "endpoint_trial" in path.read_text()
    ]
    assert naming == ["ops/cli/commands/planning/check.py"]
