"""Supervised fine-tuning on one rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tests.engines.train.letters import letters_engine, letters_spec
from tests.engines.train.support import weights_of
from tests.needs import NEEDS_PEFT
from yatt_core.digests import weights_digest
from yatt_core.engines.train.roles.sft import SftTraining, sft_learning_rate
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.receipts import SftReceipt
from yatt_core.rewards.scoring import SampleScore
from yatt_core.spec.sections.model import SftSpec


def warmed(folder: Path, **sft: float) -> tuple[TorchTrainEngine, SftReceipt]:
    engine = letters_engine(letters_spec(folder, **sft), folder)
    engine.connect(0, 1, "")
    engine.initialise()
    return engine, engine.sft()


def test_sft_stops_at_the_first_probe_that_reaches_the_accuracy(tmp_path: Path) -> None:
    _, early = warmed(tmp_path / "early", stop_accuracy=0.3, probe_every=5)
    assert early.probe_accuracy >= 0.3
    assert early.steps % 5 == 0
    engine, full = warmed(tmp_path / "full", stop_accuracy=0.95, probe_every=5)
    assert full.probe_accuracy >= 0.95
    assert early.steps < full.steps < 400
    assert full.loss < early.loss
    _, shorter = warmed(tmp_path / "shorter", stop_accuracy=0.95, probe_every=5, max_steps=full.steps - 5)
    assert shorter.probe_accuracy < 0.95
    assert engine.version == 0
    assert full.weights_digest == weights_digest(weights_of(engine))


def test_the_optimizer_starts_afresh_after_sft(tmp_path: Path) -> None:
    engine, receipt = warmed(tmp_path, max_steps=3, probe_every=100)
    assert receipt.steps == 3
    assert engine.policy.optimizer.steps == 0 and not engine.freeze_state().tensors["optimizer"]
    reference = engine.policy.reference
    assert reference is not None
    np.testing.assert_array_equal(reference.numpy(), engine.policy.optimizer.values.detach().numpy())


@NEEDS_PEFT
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["k_proj"]])
def test_only_adapters_are_warmed_up(tmp_path: Path, targets: list[str]) -> None:
    spec = letters_spec(tmp_path, lora={"rank": 2, "targets": targets}, max_steps=4, probe_every=2)
    engine = letters_engine(spec, tmp_path)
    engine.connect(0, 1, "")
    engine.initialise()
    before = weights_of(engine)
    assert engine.sft().steps == 4
    changed = {name for name, array in weights_of(engine).items() if not np.array_equal(array, before[name])}
    assert changed and all(name.split(".")[-2] in targets for name in changed)


def test_the_same_spec_gives_the_same_bits(tmp_path: Path) -> None:
    receipts = [warmed(tmp_path / name, max_steps=4, probe_every=2)[1] for name in ("a", "b")]
    assert receipts[0].weights_digest == receipts[1].weights_digest
    assert receipts[0].loss == receipts[1].loss


def test_sft_needs_initial_weights(tmp_path: Path) -> None:
    engine = letters_engine(letters_spec(tmp_path), tmp_path)
    engine.connect(0, 1, "")
    with pytest.raises(InfrastructureError, match="initialise or restore it first"):
        engine.sft()


def test_learning_rate_rises_and_stays() -> None:
    spec = SftSpec(learning_rate=0.1, lr_warmup_steps=4)
    assert [sft_learning_rate(spec, step) for step in (1, 2, 4, 9)] == pytest.approx([0.025, 0.05, 0.1, 0.1])
    assert sft_learning_rate(SftSpec(learning_rate=0.1, lr_warmup_steps=0), 1) == 0.1
    falling = SftSpec(learning_rate=0.1, lr_warmup_steps=0, max_steps=10, min_lr_ratio=0.2)
    assert [sft_learning_rate(falling, step) for step in (5, 10)] == pytest.approx([0.06, 0.02])


def test_without_sft_the_weights_are_unchanged(tmp_path: Path) -> None:
    spec = letters_spec(tmp_path).model_copy(update={"sft": None})
    engine = letters_engine(spec, tmp_path)
    engine.connect(0, 1, "")
    engine.initialise()
    before = weights_digest(weights_of(engine))
    receipt = engine.sft()
    assert (receipt.steps, receipt.weights_digest) == (0, before)
    assert engine.version == 0


def test_the_probe_leaves_out_answers_without_a_score() -> None:
    """Otherwise a scorer that fails for a fifth of the answers would have SFT go on for longer."""
    training = SftTraining.__new__(SftTraining)
    training._collective = cast(Any, SimpleNamespace(sum=lambda counts: counts))
    right = SampleScore({}, 1.0, correct=True)
    wrong = SampleScore({}, 0.0, correct=False)
    failed = SampleScore({}, 0.0, correct=False, missing=("exact/raised",))

    def accuracy(*scores: SampleScore) -> float:
        scorer = cast(Any, SimpleNamespace(score=lambda responses: scores))
        return training._accuracy([], [], scorer)

    assert accuracy(right, wrong, wrong, wrong) == accuracy(right, wrong, failed, wrong, wrong, failed) == 0.25
    assert accuracy(failed, failed) == accuracy() == 0.0
