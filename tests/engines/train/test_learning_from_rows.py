"""Objectives on the torch engine: held-out accuracy rises, and a restored trainer repeats its updates bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.train.preferred import KINDS, Trained, preferred_spec

QUICK = "dpo"


def sorted_by_need(kinds: list[str]) -> list[object]:
    """Returns the kinds as parameters, of which `make test` runs one."""
    return [kind if kind == QUICK else pytest.param(kind, marks=pytest.mark.verify) for kind in kinds]


@pytest.mark.parametrize("kind", sorted_by_need(["dpo", "simpo", "kto", "reward_model"]))
def test_held_out_accuracy_rises(kind: str, tmp_path: Path) -> None:
    trained = Trained(preferred_spec(tmp_path, KINDS[kind]), tmp_path / "run")
    before = trained.evaluate()["evaluation/accuracy"]
    # Without a reference, SimPO begins with what untrained weights happen to prefer.
    assert before == 0.5 if kind != "simpo" else before < 0.75
    trained.learn(range(1, 13))
    assert trained.evaluate()["evaluation/accuracy"] > 0.8


@pytest.mark.verify
def test_supervised_training_lowers_the_loss(tmp_path: Path) -> None:
    trained = Trained(preferred_spec(tmp_path, KINDS["sft"]), tmp_path / "run")
    before = trained.evaluate()
    trained.learn(range(1, 13))
    after = trained.evaluate()
    assert before.keys() == {"evaluation/loss"} and after["evaluation/loss"] < 0.8 * before["evaluation/loss"]


@pytest.mark.parametrize("kind", sorted_by_need(list(KINDS)))
def test_a_restored_trainer_repeats_its_updates(kind: str, tmp_path: Path) -> None:
    spec = preferred_spec(tmp_path, {**KINDS[kind], "mini_batches": 2}, rows=120, iterations=4)
    trained = Trained(spec, tmp_path / "run")
    saved = tmp_path / "saved"
    trained.learn(range(1, 3))
    saved.mkdir()
    trained.engine.freeze_state()(saved)
    ahead = trained.learn(range(3, 5))
    scored = trained.evaluate()
    again = Trained(spec, tmp_path / "run")
    again.learn(range(1, 2))  # so that it holds what a restore has to replace
    again.cursors = list(trained.cursors[:3])
    again.engine.restore(saved, 2)
    repeated = again.learn(range(3, 5))
    assert [update.fingerprint for update in repeated] == [update.fingerprint for update in ahead]
    assert again.evaluate() == scored
