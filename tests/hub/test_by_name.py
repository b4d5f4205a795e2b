"""A model and data named on the Hub, from an empty folder: `yatt init`, `check`, `fetch`, `train`, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub.server import Hub, files_of, serving
from tests.ops.conftest import Yatt
from tests.waiting import wait_until
from yatt_core.models.model_folder import make_model
from yatt_core.models.offline import OFFLINE, SAID
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.spec import load_spec
from yatt_core.spec.sections.data import HubSource
from yatt_core.spec.sections.model import HubModel, ModelFromConfig, TokenizerSpec

SMALL = ModelFromConfig(hidden_size=16, layers=1, heads=2, key_value_heads=2, intermediate_size=16, max_positions=128)
ROWS = [{"question": f"What is {number} + 1?", "solution": str(number + 1)} for number in range(40)]
WEIGHTS = "model.safetensors"
SECONDS = 300


def lines(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serves org/tiny and org/sums; the working folder is empty."""
    tokenizer = train_tokenizer(TokenizerSpec(), [row["question"] for row in ROWS], ["0123456789<answer>/"])
    save_tokenizer(tokenizer, tmp_path / "made", SMALL.max_positions)
    make_model(SMALL, tokenizer.get_vocab_size(), 0, tmp_path / "made")
    for name in (OFFLINE, SAID, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with serving(Hub()) as server:
        server.add("model", "org/tiny", files_of(tmp_path / "made"))
        server.add(
            "dataset",
            "org/sums",
            {"data/train-00000-of-00001.jsonl": lines(ROWS[:32]), "data/test-00000-of-00001.jsonl": lines(ROWS[32:])},
        )
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def begin(yatt: Yatt) -> Path:
    answer = yatt("init", "sums", "--data", "org/sums", "--model", "org/tiny", "-o", "json")
    assert answer.code == 0, answer.err
    return Path(answer.document["spec"])


def test_a_peers_file_takes_data_and_model_by_their_names(hub: Hub, yatt: Yatt) -> None:
    script = Path("run.sh")
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=8 trainer.total_epochs=2 "
        "actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.rollout.n=4 data.prompt_key=prompt "
        "actor_rollout_ref.model.path=org/tiny data.train_files=elsewhere/train.parquet data.max_prompt_length=64 "
        "data.max_response_length=32\n"
    )
    answer = yatt("init", "sums", "--from", "run.sh", "--data", "org/sums", "--here", "-o", "json")
    assert answer.code == 0, answer.err
    spec = load_spec(Path(answer.document["spec"]))
    assert isinstance(spec.model, HubModel) and spec.model.repo == "org/tiny"
    source = spec.data.sources[0]
    assert isinstance(source, HubSource)
    assert (source.repo, source.split, source.held_out_split) == ("org/sums", "train", "test")
    assert source.prompt_field == "question"
    assert spec.iterations == 2 * (32 // 8)
    assert spec.trainer.engine.kind == "torch"
    checked = yatt("check", answer.document["spec"], "-o", "json")
    assert checked.code == 0, checked.err


def test_a_first_spec_names_what_was_given_and_is_checked_without_the_weights(
    hub: Hub,
    yatt: Yatt,
) -> None:
    path = begin(yatt)
    spec = load_spec(path)
    assert isinstance(spec.model, HubModel)
    assert spec.model.repo == "org/tiny"
    source = spec.data.sources[0]
    assert isinstance(source, HubSource)
    assert (source.repo, source.split, source.held_out_split) == ("org/sums", "train", "test")
    checked = yatt("check", str(path), "-o", "json")
    assert checked.code == 0, checked.err
    assert checked.document["prompts"] == {"train": 32, "held_out": 8, "probe": 0}
    planned = yatt("plan", str(path), "--cluster", "8xH100", "-o", "json")
    assert planned.code == 0, planned.err
    assert not list(Path(os.environ["YATT_HOME"]).rglob("hub/models/*/[0-9a-f]*[0-9a-f]/files"))
    fetched = yatt("fetch", str(path), "-o", "json")
    assert fetched.code == 0, fetched.err
    rows = {row["key"]: row for row in fetched.document["repositories"]}
    assert rows["model"]["commit"] == hub.repositories["model", "org/tiny"].branches["main"]
    assert rows["data.sources.0"]["files"] == 2
    assert (Path(rows["model"]["path"]) / WEIGHTS).stat().st_blocks > 0


def test_a_folder_of_this_machine_wins_over_a_repository_of_the_same_name(
    hub: Hub,
    tmp_path: Path,
    yatt: Yatt,
) -> None:
    path = begin(yatt)
    text = path.read_text()
    path.write_text(text.replace(text[text.index("model:\n") : text.index("data:\n")], "model: org/tiny\n"))
    assert isinstance(load_spec(path).model, HubModel)
    (path.parent / "org").mkdir()
    (path.parent / "org" / "tiny").symlink_to(tmp_path / "made")
    given = load_spec(path).model
    assert given.kind == "folder"
    assert Path(given.path) == tmp_path / "made"


@pytest.mark.verify
@pytest.mark.timeout(1200)
def test_killed_while_fetching_and_while_training_and_resumed_with_the_server_gone(
    tmp_path: Path,
    hub: Hub,
    yatt: Yatt,
) -> None:
    spec = begin(yatt)
    changes = ["--set", "iterations=2", "--set", "checkpoints.every=1"]
    undisturbed = finished(["train", str(spec), *changes], tmp_path / "other")
    hub.held.add(WEIGHTS)
    hub.asked.clear()
    process = started(["train", str(spec), *changes], tmp_path / "runs")
    wait_until(lambda: hub.fetched(WEIGHTS) > 0, SECONDS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.held.clear()
    hub.released.set()
    commit = hub.repositories["model", "org/tiny"].branches["main"]
    process = started(["train", str(spec), *changes], tmp_path / "runs")
    (run,) = waited_for_one(tmp_path / "runs")
    wait_until(lambda: any((run / "inputs").glob("manifest.json")), SECONDS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.repositories["model", "org/tiny"].commit({"config.json": b"{}"})
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    resumed = finished(["resume", "latest"], tmp_path / "runs")
    assert commit in (run / "spec.yaml").read_text()
    assert {key: resumed[key] for key in DIGESTS} == {key: undisturbed[key] for key in DIGESTS}


DIGESTS = ("weights_digest", "experience_digest", "metrics_digest")


def started(words: list[str], runs: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-c",
        "import sys; from ops.cli.main import main; sys.exit(main())",
        *words,
        "-o",
        "json",
    ]
    return subprocess.Popen(command, env={**os.environ, "YATT_HOME": str(runs)}, stdout=subprocess.PIPE)


def finished(words: list[str], runs: Path) -> dict[str, Any]:
    process = started(words, runs)
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def waited_for_one(runs: Path) -> list[Path]:
    wait_until(lambda: any(runs.glob("*/spec.yaml")), SECONDS)
    return [path.parent for path in runs.glob("*/spec.yaml")]
