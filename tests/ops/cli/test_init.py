"""`yatt init`: what it writes runs, it asks only on a terminal, and it replaces nothing."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.conftest import Yatt
from yatt_core.models.model_folder import make_model
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.spec import load_spec
from yatt_core.spec.sections.model import ModelFromConfig, TokenizerSpec

SMALL = ModelFromConfig(hidden_size=16, layers=1, heads=2, key_value_heads=2, intermediate_size=16, max_positions=128)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Contains 40 rows and a model's folder; it is the working directory."""
    rows = [{"question": f"What is {number} + 1?", "solution": str(number + 1)} for number in range(40)]
    (tmp_path / "My rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = train_tokenizer(TokenizerSpec(), [row["question"] for row in rows], ["0123456789<answer>/"])
    save_tokenizer(tokenizer, tmp_path / "model", SMALL.max_positions)
    make_model(SMALL, tokenizer.get_vocab_size(), 0, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_it_writes_passes_the_check(yatt: Yatt, folder: Path) -> None:
    answer = yatt("init", "sums", "--data", "My rows.jsonl", "--model", "model", "-o", "json")
    assert answer.code == 0, answer.err
    assert answer.document == {"spec": "sums/my-rows.yaml", "reward": "sums/reward.py"}
    checked = yatt("check", "sums/my-rows.yaml", "-o", "json")
    assert checked.code == 0, checked.err
    assert checked.document["prompts"] == {"train": 36, "held_out": 4, "probe": 0}
    scores = {trial["given"]: trial["score"] for trial in checked.document["trials"]}
    assert scores["the reference answer"] == 1.0 and scores["nothing"] == 0.0
    assert checked.document["needs"]["memory_bytes"] > 0 and checked.document["needs"]["seconds"] > 0


def test_a_function_of_ones_own_is_named_instead(yatt: Yatt, folder: Path) -> None:
    (folder / "mine.py").write_text("def score(prompt, response):\n    return 1.0\n")
    words = ["--data", "My rows.jsonl", "--model", "model", "--reward", "mine.py:score", "--name", "2024"]
    answer = yatt("init", "sums", *words)
    assert answer.code == 0, answer.err
    assert not (folder / "sums" / "reward.py").exists()
    spec = load_spec(folder / "sums" / "2024.yaml")
    assert spec.name == "2024" and spec.rewards.functions[0].path == folder / "mine.py"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "model"], "--data: missing"),
        (["--data", "rows.csv", "--model", "model"], "--data rows.csv"),
        (["--data", "My rows.jsonl", "--model", "models"], "models is not a folder"),
        (["--data", "My rows.jsonl", "--model", "model", "--prompt-field", "promt"], "--prompt-field promt"),
        (["--data", "My rows.jsonl", "--model", "model", "--name", "My Run"], "name"),
        (["--data", "My rows.jsonl", "--model", "model", "--reward", "nowhere.py:score"], "nowhere.py"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(yatt: Yatt, folder: Path, words: list[str], says: str) -> None:
    before = sorted(folder.iterdir())
    answer = yatt("init", *words)
    assert (answer.code, says in answer.err) == (2, True), answer.err
    assert sorted(folder.iterdir()) == before


def test_a_file_that_exists_is_kept(yatt: Yatt, folder: Path) -> None:
    (folder / "reward.py").write_text("# mine\n")
    answer = yatt("init", "--data", "My rows.jsonl", "--model", "model")
    assert answer.code == 2 and "reward.py exists" in answer.err
    assert (folder / "reward.py").read_text() == "# mine\n" and not (folder / "my-rows.yaml").exists()


def test_it_asks_on_a_terminal_until_it_has_what_it_needs(folder: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "ops.cli.main", "init"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    asking = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    os.write(ours, b"nowhere.jsonl\nMy rows.jsonl\nmodel\n\n")
    out, err = asking.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert asking.returncode == 0, err
    assert b"nowhere.jsonl: there is no such file" in err
    assert b"my-rows.yaml" in out and (folder / "reward.py").exists()
