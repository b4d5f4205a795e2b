"""`yatt evaluate` on a virtual run's checkpoint from the real writer: greedy and sampled answers, wrong options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.run.home import Home
from tests.engines.train.support import weights_of
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.virtual.trainer import VirtualTrainEngine
from yatt_core.evaluation.estimators import pass_at_k, wilson_interval
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import checkpoint_folder
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt import Completion
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.protocols.receipts import TaskResult
from yatt_core.rewards.scoring import RewardScorer, Scored


@pytest.fixture
def run(home: Home) -> str:
    """Creates a run with inputs and two checkpoints: iteration 0, and the same tensors again as iteration 2."""
    run = seed_run(home, ends=False)
    folder = home.run_folder(run)
    spec = toy_spec()
    materialise(spec, folder)
    trainer = VirtualTrainEngine(spec, RankContext(folder, folder / INPUTS, "", 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    with Ledger.open(home.ledger) as ledger:
        for iteration in (0, 2):
            identity = CheckpointIdentity(run, 0, iteration, 1, spec.digest, "")
            name = str(checkpoint_folder(0, iteration, 1))
            receipt = publish_checkpoint(folder, name, identity, trainer.freeze_state(), 1000)
            row = CheckpointRow(run, 0, iteration, 1, name, receipt.manifest_sha256, receipt.bytes, "", 0.1)
            ledger.records.checkpoint(Fence.of_run(run, 1), row)
    return run


def answered_one_by_one(home: Home, run: str) -> int:
    """Counts the correct answers of the same weights, one task at a time."""
    spec = toy_spec()
    folder = home.run_folder(run)
    trainer = VirtualTrainEngine(spec, RankContext(folder, folder / INPUTS, "", 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    engine = build_rollout_engine(spec, "", Path())
    codec = open_codec(spec, "")
    scorer = RewardScorer(spec.rewards)
    engine.update_weights(weights_of(trainer), 0)
    correct = 0
    for prompt in Inputs.open(folder / INPUTS, spec).held_out:
        tokens = [codec.encode_prompt(prompt)]
        request = GenerateRequest(tokens, np.zeros((1, 1), np.uint64), 8, codec.stop_tokens, 0, greedy=True)
        text = codec.decode(engine.generate(request).tokens)
        correct += scorer.score([Scored(prompt, Completion.of_turns(text, [text], 1))])[0].correct
    return correct


def test_a_task_without_a_score_has_no_reward(yatt: Yatt, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scored = TaskResult(prompt_id="a", source=0, samples=1, correct=0, reward=0.0)
    failed = TaskResult(prompt_id="b", source=0, samples=0, correct=0, reward=0.0, unscored=1)
    monkeypatch.setattr("ops.evaluation.command.evaluate_weights", lambda *_: [scored, failed])
    document = yatt("evaluate", run, "--iteration", "0", "-o", "json").document
    assert [task["reward"] for task in document["results"]] == [0.0, None]
    assert (document["tasks"], document["reward"], document["unscored"]) == (1, 0.0, 1)


def test_a_kept_checkpoint_answers_the_held_out_tasks(yatt: Yatt, home: Home, run: str) -> None:
    document = yatt("evaluate", run, "--iteration", "0", "-o", "json").document
    correct = answered_one_by_one(home, run)
    assert 0 < correct < 20
    assert (document["tasks"], document["correct"], document["accuracy"]) == (20, correct, correct / 20)
    assert (document["low"], document["high"]) == wilson_interval(correct / 20, 20)
    newest = yatt("evaluate", run)
    assert f"{run}, iteration 2: accuracy {correct / 20:.3f} (95 % interval " in newest.out


def test_an_iteration_without_a_checkpoint_is_refused_with_the_kept_ones(yatt: Yatt, run: str) -> None:
    answer = yatt("evaluate", run, "--iteration", "1")
    assert (answer.code, answer.out) == (2, "")
    assert f"run {run}: " in answer.err and "iteration 1; kept iterations: 0, 2" in answer.err


def test_a_damaged_checkpoint_is_not_loaded(yatt: Yatt, home: Home, run: str) -> None:
    path = home.run_folder(run) / checkpoint_folder(0, 2, 1) / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    answer = yatt("evaluate", run)
    assert (answer.code, answer.out) == (1, "")
    assert f"{path}: sha256 is" in answer.err


def test_a_run_without_checkpoints(yatt: Yatt, home: Home) -> None:
    answer = yatt("evaluate", seed_run(home))
    assert answer.code == 2 and answer.err.startswith("error: run toy-1: no checkpoint ")


def test_sampled_answers_have_pass_at_k_and_a_vote(yatt: Yatt, run: str) -> None:
    options = ("--samples", "4", "--temperature", "0.7", "--pass-at", "2", "--pass-at", "4", "--vote", "whole")
    document = yatt("evaluate", run, *options, "-o", "json").document
    counts = [task["correct"] for task in document["results"]]
    assert {task["samples"] for task in document["results"]} == {4} and len(set(counts)) > 1
    assert document["accuracy"] == pytest.approx(sum(counts) / 80)
    assert document["pass_at_2"]["value"] == pytest.approx(sum(pass_at_k(4, c, 2) for c in counts) / 20)
    assert document["pass_at_4"]["value"] == sum(c > 0 for c in counts) / 20
    assert document["low"] < document["accuracy"] < document["high"] and "majority" in document
    assert document == yatt("evaluate", run, *options, "-o", "json").document
    assert f"  pass@4: {document['pass_at_4']['value']:.3f} (" in yatt("evaluate", run, *options).out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--samples", "4", "--pass-at", "5"), ("--pass-at", "5", "samples 4")),
        (("--samples", "0"), ("--samples", "1")),
        (("--vote", "middle"), ("--vote", "'whole'")),
        (("--samples", "1", "--vote", "whole"), ("--vote", "2")),
        (("--samples", "300"), ("evaluation.sampling.samples", "rollout.batch_samples")),
        (("--greedy", "--pass-at", "2"), ("--greedy", "--pass-at")),
        (("--iteration", "0", "--model", "x"), ("--iteration", "--model")),
        (("--model", "x"), ("--model", "virtual")),
    ],
)
def test_wrong_options_are_named(yatt: Yatt, run: str, options: tuple[str, ...], told: tuple[str, ...]) -> None:
    answer = yatt("evaluate", run, *options)
    assert (answer.code, answer.out) == (2, "")
    assert all(part in answer.err for part in told), answer.err
