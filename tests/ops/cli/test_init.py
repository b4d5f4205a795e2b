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
from yatt_core.datasets.sources import collect_prompts
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
    assert answer.document["spec"] == "sums/my-rows.yaml" and answer.document["reward"] is None
    assert not (folder / "sums" / "reward.py").exists()
    checked = yatt("check", "sums/my-rows.yaml", "-o", "json")
    assert checked.code == 0, checked.err
    assert checked.document["prompts"] == {"train": 36, "held_out": 4, "probe": 0}
    scores = {trial["given"]: trial["score"] for trial in checked.document["trials"]}
    assert scores["the reference answer"] == 1.0 and scores["nothing"] == 0.0
    assert checked.document["needs"]["memory_bytes"] > 0 and checked.document["needs"]["seconds"] > 0


def test_a_reward_file_to_start_from_is_written_if_asked_for(yatt: Yatt, folder: Path) -> None:
    answer = yatt("init", "sums", "--data", "My rows.jsonl", "--model", "model", "--reward", "new", "-o", "json")
    assert answer.code == 0, answer.err
    assert (answer.document["spec"], answer.document["reward"]) == ("sums/my-rows.yaml", "sums/reward.py")
    checked = yatt("check", "sums/my-rows.yaml", "-o", "json")
    assert checked.code == 0, checked.err
    scores = {trial["given"]: trial["score"] for trial in checked.document["trials"]}
    assert scores["the reference answer"] == 1.0 and scores["nothing"] == 0.0


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
    answer = yatt("init", "--data", "My rows.jsonl", "--model", "model", "--reward", "new")
    assert answer.code == 2 and "reward.py exists" in answer.err
    assert (folder / "reward.py").read_text() == "# mine\n" and not (folder / "my-rows.yaml").exists()


def test_it_asks_on_a_terminal_until_it_has_what_it_needs(folder: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "ops.cli.main", "init"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    asking = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    os.write(ours, b"nowhere.jsonl\nMy rows.jsonl\nmodel\nnew\n")
    out, err = asking.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert asking.returncode == 0, err
    assert b"nowhere.jsonl: there is no such file" in err
    assert b"my-rows.yaml" in out and (folder / "reward.py").exists()


def test_it_says_what_it_recognised_and_what_comes_next(yatt: Yatt, folder: Path) -> None:
    answer = yatt("init", "--data", "My rows.jsonl", "--model", "model")
    assert "prompts in 'question', answers in 'solution' (numbers)" in answer.err
    assert "reward: exact_match, reads the last number" in answer.err
    assert answer.out.splitlines()[-2:] == ["next: yatt check my-rows.yaml", "then: yatt train my-rows.yaml"]
    document = yatt("init", "o", "--data", "My rows.jsonl", "--model", "model", "-o", "json").document
    (source,) = document["sources"]
    assert document["objective"] == "rl" and source["kind"] == "jsonl" and source["rows"] == 40
    assert source["keys"] == {"prompt_field": "question", "answer_field": "solution"}
    assert source["reward"]["function"] == "exact_match" and source["unused"] == [] and source["held_out"] is None


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


SUMS: list[dict[str, object]] = [{"question": f"What is {n} + 2?", "solution": str(n + 2)} for n in range(30)]
PAIRS: list[dict[str, object]] = [{"prompt": f"What is {n}?", "chosen": "it", "rejected": "is"} for n in range(30)]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.jsonl", "test.jsonl"),
        ("sums_train.jsonl", "sums_test.jsonl"),
        ("train.jsonl", "validation.jsonl"),
        ("train-v2.jsonl", "dev-v2.jsonl"),
    ],
)
def test_a_test_file_beside_the_data_is_held_out(yatt: Yatt, folder: Path, train: str, test: str) -> None:
    write(folder / "data" / train, SUMS)
    write(folder / "data" / test, SUMS[:7])
    answer = yatt("init", "--data", f"data/{train}", "--model", "model", "--name", "sums")
    assert f"held out: {test}" in answer.err
    source = load_spec(folder / "sums.yaml").data.sources[0]
    assert source.model_dump()["held_out_path"] == str(folder / "data" / test)


def test_test_rows_come_before_validation_rows_and_need_answers(yatt: Yatt, folder: Path) -> None:
    write(folder / "data" / "train.jsonl", SUMS)
    write(folder / "data" / "validation.jsonl", SUMS[:7])
    write(folder / "data" / "test.jsonl", SUMS[:5])
    yatt("init", "a", "--data", "data", "--model", "model")
    assert load_spec(folder / "a" / "data.yaml").data.sources[0].model_dump()["held_out_split"] == "test"
    write(folder / "data" / "test.jsonl", [{"question": "What is 7 + 2?", "solution": ""}])
    answer = yatt("init", "b", "--data", "data", "--model", "model")
    assert "not used: split 'test', whose row 1 has nothing under 'solution'" in answer.err
    assert load_spec(folder / "b" / "data.yaml").data.sources[0].model_dump()["held_out_split"] == "validation"


def test_a_split_and_a_subset_are_chosen_or_asked_for(yatt: Yatt, folder: Path) -> None:
    for subset in ("main", "socratic"):
        write(folder / "gsm" / subset / "train-00000-of-00001.jsonl", SUMS)
    words = ("--data", "gsm", "--model", "model")
    refused = yatt("init", *words)
    assert refused.code == 2 and "--subset: main, socratic" in refused.err
    assert "no such configuration" in yatt("init", *words, "--subset", "mainly").err
    assert yatt("init", *words, "--subset", "main").code == 0
    spec = load_spec(folder / "gsm.yaml")
    assert spec.data.sources[0].model_dump()["subset"] == "main"
    assert len(collect_prompts(spec.data, 0, with_probe=False).held_out) == 3
    write(folder / "only" / "test.jsonl", SUMS)
    refused = yatt("init", "--data", "only", "--model", "model")
    assert refused.code == 2 and "--split: test" in refused.err
    assert yatt("init", "--data", "only", "--model", "model", "--split", "test").code == 0
    assert load_spec(folder / "only.yaml").data.sources[0].model_dump()["split"] == "test"
    assert "is not a folder" in yatt("init", "--data", "My rows.jsonl", "--model", "model", "--split", "train").err


def test_several_files_and_several_functions(yatt: Yatt, folder: Path) -> None:
    write(folder / "more" / "sums.jsonl", [{"prompt": row["question"], "answer": row["solution"]} for row in SUMS])
    (folder / "mine.py").write_text("def score(prompt, response):\n    return 1.0\n")
    (folder / "yours.py").write_text("def score(prompt, response):\n    return 0.0\n")
    words = ("--data", "My rows.jsonl", "--data", "more/sums.jsonl", "--model", "model", "--name", "both")
    assert yatt("init", "a", *words).code == 0
    sources = [source.model_dump() for source in load_spec(folder / "a" / "both.yaml").data.sources]
    assert [source["answer_field"] for source in sources] == ["solution", "answer"]
    answer = yatt("init", "b", *words, "--reward", "mine.py:score", "--reward", "yours.py:score")
    assert answer.code == 0, answer.err
    assert [part.name for part in load_spec(folder / "b" / "both.yaml").rewards.parts] == ["score", "score_2"]
    write(folder / "pairs.jsonl", PAIRS)
    refused = yatt("init", "c", *words, "--data", "pairs.jsonl")
    assert refused.code == 2 and "have different objectives" in refused.err


@pytest.mark.parametrize("kind", ["dpo", "simpo", "reward_model"])
def test_pairs_are_learnt_as_the_objective_says(yatt: Yatt, folder: Path, kind: str) -> None:
    write(folder / "pairs.jsonl", PAIRS)
    answer = yatt("init", "--data", "pairs.jsonl", "--model", "model", "--objective", kind)
    assert answer.code == 0, answer.err
    spec = load_spec(folder / "pairs.yaml")
    assert spec.objective is not None and spec.objective.kind == kind and not spec.rewards.parts


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--objective", "dpo"), "for preferences, the nearest, the preferred response"),
        (("--objective", "kto"), "no shape that is known for --objective kto"),
        (("--objective", "sft", "--reward", "new"), "learns from the rows and has no rewards"),
        (("--objective", "ppo"), "ppo"),
    ],
)
def test_an_objective_that_the_rows_do_not_have_is_refused(
    yatt: Yatt, folder: Path, words: tuple[str, ...], says: str
) -> None:
    answer = yatt("init", "--data", "My rows.jsonl", "--model", "model", *words)
    assert answer.code == 2 and says in answer.err, answer.err
    assert not (folder / "my-rows.yaml").exists()


def test_a_path_of_any_length_is_named_as_it_is(yatt: Yatt, folder: Path) -> None:
    for number, name in enumerate(["a" * 120, "it's # 1: 'x'", "- a", "deep/" * 12 + "end"]):
        write(folder / name / "train.jsonl", SUMS)
        answer = yatt("init", "--data", f"{name}/train.jsonl", "--model", "model", "--name", f"run-{number}")
        assert answer.code == 0, answer.err
        source = load_spec(folder / f"run-{number}.yaml").data.sources[0]
        assert Path(source.model_dump()["path"]).is_file()


def test_the_check_shows_that_a_right_answer_scores_in_the_form_that_is_asked_for(yatt: Yatt, folder: Path) -> None:
    rows = [{"prompt": f'What is {n} + 1? Write it after "####".', "answer": str(n + 1)} for n in range(30)]
    write(folder / "asked.jsonl", [{**row} for row in rows])
    assert yatt("init", "--data", "asked.jsonl", "--model", "model").code == 0
    checked = yatt("check", "asked.yaml", "-o", "json")
    assert checked.code == 0, checked.err
    scores = {trial["given"]: trial["score"] for trial in checked.document["trials"]}
    assert (scores["the reference answer"], scores["a number"]) == (1.0, 0.0)
