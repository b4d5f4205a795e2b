"""`yatt evaluate` on a virtual run's checkpoint from the real writer, and the interval that it prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.run.home import Home
from ops.cli.commands.checkpoints.evaluate import wilson_interval
from tests.engines.train.support import weights_of
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.virtual.trainer import VirtualTrainEngine
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import checkpoint_folder
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt import Completion
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.generation import GenerateRequest
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
            ledger.records.checkpoint(Fence(run, 1), row)
    return run


def answered_one_by_one(home: Home, run: str) -> int:
    """Counts the correct answers of the same weights, one task at a time."""
    spec, folder = toy_spec(), home.run_folder(run)
    trainer = VirtualTrainEngine(spec, RankContext(folder, folder / INPUTS, "", 0))
    trainer.connect(0, 1, "")
    trainer.initialise()
    engine, codec, scorer = build_rollout_engine(spec, "", Path()), open_codec(spec, ""), RewardScorer(spec.rewards)
    engine.update_weights(weights_of(trainer), 0)
    correct = 0
    for prompt in Inputs.open(folder / INPUTS, spec).held_out:
        tokens = [codec.encode_prompt(prompt.text)]
        request = GenerateRequest(tokens, np.zeros((1, 1), np.uint64), 8, codec.stop_tokens, 0, greedy=True)
        text = codec.decode(engine.generate(request).tokens)
        correct += scorer.score([Scored(prompt, Completion.of_turns(text, [text], 1))])[0].correct
    return correct


def test_a_kept_checkpoint_answers_the_held_out_tasks(yatt: Yatt, home: Home, run: str) -> None:
    document = yatt("evaluate", run, "--iteration", "0", "-o", "json").document
    correct = answered_one_by_one(home, run)
    assert 0 < correct < 20
    assert (document["tasks"], document["correct"], document["accuracy"]) == (20, correct, correct / 20)
    assert (document["low"], document["high"]) == wilson_interval(correct, 20)
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


def test_the_confidence_interval_of_a_share() -> None:
    # Values of Wilson's formula from published tables.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson_interval(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)
