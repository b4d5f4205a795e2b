"""`yatt init --from`: the specs of the peers' own examples pass the check, with a small model and rows that options name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ops.conftest import Yatt
from tests.ops.starter.model_folders import make_folder
from tests.ops.starter.peers.reading import EXAMPLES
from yatt_core.spec import load_spec

POSITIONS = 131_072
"""Enough for the prompts and responses of all examples."""
POSITIONS_OF_SMALL = 256
KINDS = {"ppo": "sums", "grpo": "sums", "dapo": "sums", "reinforce": "sums", "dpo": "pairs", "sft": "chats"}
LISTS = ("taken", "different", "without_counterpart", "unknown")


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def sum_of(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "solution": str(number + 1)}


def pair(number: int) -> dict[str, Any]:
    prompt = message("user", f"What is {number} + 1?")
    answers = (str(number + 1), "I do not know.")
    return {
        name: [prompt, message("assistant", text)] for name, text in zip(("chosen", "rejected"), answers, strict=True)
    }


def chat(number: int) -> dict[str, Any]:
    return {"messages": [message("user", f"What is {number} + 1?"), message("assistant", str(number + 1))]}


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {"sums": sum_of, "pairs": pair, "chats": chat}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a file of rows of each kind."""
    folder = tmp_path_factory.mktemp("files")
    make_folder(folder / "model", positions=POSITIONS)
    for name, row in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(40)))
    return folder


@pytest.mark.parametrize("example", sorted(EXAMPLES.iterdir()), ids=lambda path: path.stem)
def test_the_spec_of_an_example_passes_the_check(yatt: Yatt, files: Path, tmp_path: Path, example: Path) -> None:
    rows = files / f"{KINDS[example.stem.split('-')[1]]}.jsonl"
    launched = ["--processes", "8"] if example.stem.startswith("trl") or example.stem == "openrlhf-sft" else []
    options = ["--data", str(rows), "--model", str(files / "model"), "--here", *launched]
    if example.stem == "openrlhf-ppo":  # its reward model is on the Hub
        options += ["--reward", "exact_match"]
    answer = yatt("init", str(tmp_path / "new"), "--from", str(example), *options, "-o", "json")
    assert answer.code == 0, answer.err
    checked = yatt("check", answer.document["spec"], "-o", "json")
    assert checked.code == 0, checked.err


def test_the_lists_are_said_and_written(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    words = ("--from", str(EXAMPLES / "openrlhf-sft.sh"), "--model", str(files / "model"), "--processes", "2")
    answer = yatt("init", str(tmp_path / "new"), *words, "--data", str(files / "chats.jsonl"), "--name", "mine")
    assert answer.code == 0, answer.err
    assert "wrote " in answer.out and "next: yatt check" in answer.out
    assert "20 keys of OpenRLHF 0.11.2 (openrlhf-sft)" in answer.err
    assert "line 16: train.max_epochs = 1 -> iterations: 1 (1 pass over the rows)" in answer.err
    assert "defaults of OpenRLHF 0.11.2 that the file leaves unsaid, and that are not YATT's" in answer.err
    text = (tmp_path / "new" / "mine.yaml").read_text()
    assert "wandb_token" not in text + answer.out + answer.err and "(not shown)" in answer.err
    assert "learning_rate: 5.0e-06" in text and "# adam.lr" in text and "# default: lr_scheduler" in text
    written = yatt("init", str(tmp_path / "json"), *words, "--data", str(files / "chats.jsonl"), "-o", "json").document
    assert sum(len(written[name]) for name in LISTS) == 20
    assert {"key": "adam.lr", "line": 19, "value": 5e-06}.items() <= {
        key: value for entry in written["taken"] if entry["key"] == "adam.lr" for key, value in entry.items()
    }.items()


def test_data_model_and_reward_of_the_file_itself(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def score(prompt, response):\n    return 1.0\n")
    script = tmp_path / "run.sh"
    script.write_text(
        f"export WANDB_API_KEY=w-zyx-91-sigma\nF={files}\n"
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$F/sums.jsonl "
        "data.prompt_key=question data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=4 "
        "actor_rollout_ref.model.path=$F/model actor_rollout_ref.rollout.name=hf actor_rollout_ref.rollout.n=4 "
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1 trainer.n_gpus_per_node=2 trainer.total_epochs=3\n"
    )
    recognised = yatt("init", str(tmp_path / "new"), "--from", str(script), "-o", "json")
    assert recognised.code == 0, recognised.err
    assert "w-zyx-91-sigma" not in recognised.out + recognised.err
    spec = load_spec(Path(recognised.document["spec"]))
    assert spec.iterations == 3 * (40 // 8)
    (source,) = spec.data.model_dump()["sources"]
    assert (source["prompt_field"], source["answer_field"]) == ("question", "solution")
    assert [part.function for part in spec.rewards.functions] == ["exact_match"]
    own = yatt(
        "init", str(tmp_path / "own"), "--from", str(script), "--reward", f"{tmp_path}/reward.py:score", "--rows", "80"
    )
    assert own.code == 0, own.err
    spec = load_spec(tmp_path / "own" / "run.yaml")
    assert spec.iterations == 3 * (80 // 8)
    assert [Path(str(part.file)).name for part in spec.rewards.functions] == ["reward.py:score"]
    assert yatt("check", str(tmp_path / "own" / "run.yaml")).code == 0


def test_the_lists_say_what_the_spec_has(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        f"F={files}\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=$F/sums.jsonl "
        "data.prompt_key=prompt data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=4 "
        "actor_rollout_ref.model.path=$F/model actor_rollout_ref.rollout.n=4 trainer.experiment_name='My Run_1' "
        "trainer.total_epochs=3\n"
    )
    answer = yatt("init", str(tmp_path / "new"), "--from", str(script), "-o", "json")
    assert answer.code == 0, answer.err
    spec = load_spec(Path(answer.document["spec"]))
    lists = {entry["key"]: (name, entry) for name in LISTS for entry in answer.document[name]}
    name, entry = lists["data.prompt_key"]
    assert (name, entry["why"]) == ("different", "in its place: prompt_field 'question'")
    name, entry = lists["data.train_files"]
    assert name == "different" and "prompt_field 'question'" in entry["why"]
    assert entry["to"]["data.sources"][0]["prompt_field"] == "question"
    assert lists["trainer.experiment_name"][1]["to"] == {"name": spec.name}
    named = yatt("init", str(tmp_path / "named"), "--from", str(script), "--name", "mine", "-o", "json").document
    verdicts = {entry["key"]: entry["why"] for entry in named["different"]}
    assert verdicts["trainer.experiment_name"] == "--name takes its place"
    script.write_text(script.read_text().replace("prompt_key=prompt", "prompt_key=question"))
    fields = ("--prompt-field", "solution", "--answer-field", "question", "--reward", "exact_match")
    wins = yatt("init", str(tmp_path / "wins"), "--from", str(script), *fields, "-o", "json")
    assert wins.code == 0, wins.err
    assert load_spec(Path(wins.document["spec"])).data.model_dump()["sources"][0]["prompt_field"] == "solution"


def test_options_say_which_rows_of_the_files_own_data_are_read(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    config = tmp_path / "dpo.yaml"
    config.write_text(
        "dataset_name: org/pairs\nmax_steps: 2\nper_device_train_batch_size: 2\nbeta: 0.1\npad_token: <pad>\n"
        "env:\n  A: zyx-91-sigma-b\nlogging_dir: https://me:zyx-91-sigma-c@there/x\n"
    )
    words = ("--from", str(config), "--peer", "trl-dpo", "--model", str(files / "model"), "--processes", "1")
    answer = yatt("init", str(tmp_path / "first"), *words, "--split", "train_prefs", "-o", "json")
    assert answer.code == 0, answer.err
    source = load_spec(Path(answer.document["spec"])).data.model_dump()["sources"][0]
    assert (source["repo"], source["split"]) == ("org/pairs", "train_prefs")
    assert "split 'train_prefs'" in str([entry["why"] for entry in answer.document["different"]])
    text = yatt("init", str(tmp_path / "text"), *words)
    assert text.code == 0, text.err
    assert "pad_token = <pad>" in text.err and "https://me:***@there/x" in text.err
    assert "zyx-91-sigma" not in answer.out + answer.err + text.out + text.err
    config.write_text(f"dataset_name: {files}/pairs.jsonl\nmax_steps: 2\nbeta: 0.1\n")
    answer = yatt("init", str(tmp_path / "new"), *words, "--split", "train")
    assert answer.code == 2 and "is not a folder; name the file of the split with --data" in answer.err


def test_what_is_wrong_ends_with_2_and_writes_nothing(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    example = str(EXAMPLES / "trl-dpo.sh")
    known = ("--data", str(files / "pairs.jsonl"), "--model", str(files / "model"))
    new = tmp_path / "new"
    wrong = {
        ("--from", str(tmp_path / "none.yaml"), *known): "cannot be read: No such file",
        ("--from", example, *known): "--processes",
        ("--from", example, *known, "--peer", "trl"): "--peer trl: unknown; expected one of verl-ppo",
        ("--from", example, *known, "--peer", "trl-sft"): "leave --peer out",
        ("--from", example, *known, "--objective", "dpo"): "leave --objective out",
        ("--from", example, "--data", str(files / "pairs.jsonl"), "--processes", "1"): "never been fetched here",
        ("--from", str(EXAMPLES / "verl-grpo.sh"), "--model", str(files / "model")): "--rows",
        (
            "--from",
            str(EXAMPLES / "verl-grpo.sh"),
            "--model",
            str(files / "model"),
            "--rows",
            "7473",
        ): "name one with --reward",
        ("--processes", "2", *known): "name it with --from",
    }
    for words, said in wrong.items():
        answer = yatt("init", str(new), *words)
        assert (answer.code, said in answer.err) == (2, True), (words, answer.err)
    assert not new.exists()


@pytest.mark.parametrize(
    ("peer", "limit"),
    [
        ("trl-dpo", POSITIONS_OF_SMALL),
        ("trl-dpo", None),
        ("trl-reward", POSITIONS_OF_SMALL),
        ("openrlhf-dpo", POSITIONS_OF_SMALL),
    ],
)
def test_a_limit_on_prompt_and_response_together_fits_into_the_model(
    yatt: Yatt, files: Path, tmp_path: Path, peer: str, limit: int | None
) -> None:
    make_folder(tmp_path / "model", positions=POSITIONS_OF_SMALL)
    if peer.startswith("trl"):
        keys = {"max_length": limit, "max_steps": 2, "per_device_train_batch_size": 2}
    else:
        keys = {"data.max_len": limit, "train.batch_size": 2}
    config = tmp_path / "m.json"
    config.write_text(json.dumps(keys))
    options = ("--peer", peer, "--processes", "1", "--here", "--data", str(files / "pairs.jsonl"))
    answer = yatt("init", str(tmp_path), "--from", str(config), *options, "--model", str(tmp_path / "model"))
    assert answer.code == 0, answer.err
    checked = yatt("check", str(tmp_path / "m.yaml"))
    assert checked.code == 0, checked.err


def test_a_value_that_a_spec_refuses_is_that_of_the_peers_file(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    config = tmp_path / "m.yaml"
    config.write_text("max_steps: 2\nbeta: 0.1\nlearning_rate: 1.0e-6\nadam_beta1: 1.5\nadam_epsilon: 0\n")
    words = ("--from", str(config), "--peer", "trl-dpo", "--model", str(files / "model"), "--processes", "1")
    new = tmp_path / "new" / "deep"
    answer = yatt("init", str(new), *words, "--data", str(files / "pairs.jsonl"))
    assert answer.code == 2
    assert f"{config}, line 4: adam_beta1 = 1.5: trainer.optimizer.betas.0: " in answer.err
    assert f"{config}, line 5: adam_epsilon = 0: trainer.optimizer.epsilon: " in answer.err
    assert str(new) not in answer.err and not new.parent.exists()


def test_a_folder_made_for_a_spec_that_is_not_valid_is_left_out(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    own = ("--reward", f"{tmp_path}/none.py:score", "--model", str(files / "model"))
    data = ("--data", str(files / "sums.jsonl"))
    (tmp_path / "there").mkdir()
    for words in (("--from", str(EXAMPLES / "verl-grpo.sh"), *data), data):
        for folder in ("there", "new/deep"):
            answer = yatt("init", str(tmp_path / folder), *words, *own)
            assert (answer.code, "none.py" in answer.err) == (2, True), answer.err
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_nothing_is_replaced(yatt: Yatt, files: Path, tmp_path: Path) -> None:
    words = (
        "--from",
        str(EXAMPLES / "trl-dpo.sh"),
        "--data",
        str(files / "pairs.jsonl"),
        "--model",
        str(files / "model"),
    )
    assert yatt("init", str(tmp_path), *words, "--processes", "1").code == 0
    before = (tmp_path / "trl-dpo.yaml").read_text()
    again = yatt("init", str(tmp_path), *words, "--processes", "2")
    assert again.code == 2 and "exists already" in again.err
    assert (tmp_path / "trl-dpo.yaml").read_text() == before
