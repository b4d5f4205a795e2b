"""A reward model trained here is exported as a classifier, with which a judge gives the scores of training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from examples.preferences import preference_rows
from tests.engines.train.preferred import KINDS, Trained, preferred_spec
from yatt_core.checkpoints.export import export_model
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.engines.train.ranks.process_group import close_process_group
from yatt_core.inputs.reader import Inputs
from yatt_core.inputs.row_batch import held_out_batch
from yatt_core.judges.reward_model import RewardModelJudge
from yatt_core.prompts.codec import open_codec
from yatt_core.protocols.judges import JudgeItem, JudgeRequest
from yatt_core.spec.rewards.judges import RewardModelPart
from yatt_core.spec.sections.model import ModelFolder


def export(trained: Trained, folder: Path) -> Path:
    """Exports what an engine holds."""
    saved = folder / "saved"
    target = folder / "reward"
    saved.mkdir(parents=True)
    trained.engine.freeze_state()(saved)
    identity = CheckpointIdentity("R", 0, trained.engine.version, 1, trained.spec.digest, "", "")
    export_model(saved, trained.model, target, identity, reward_model=True)
    return target


def judged(folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Returns a judge's scores of prompts with responses."""
    part = RewardModelPart(
        name="reward", model=ModelFolder(path=str(folder)), template=KINDS["reward_model"]["template"]
    )
    items = tuple(JudgeItem(number, prompt, response, None, (0,)) for number, (prompt, response) in enumerate(pairs))
    verdicts = {
        one.number: one for some in RewardModelJudge(part, str(folder)).judge(JudgeRequest(items)) for one in some
    }
    return [verdicts[number].judgements[0].score or 0.0 for number in range(len(pairs))]


def test_an_exported_reward_model_judges_as_it_was_trained(tmp_path: Path) -> None:
    spec = preferred_spec(tmp_path, KINDS["reward_model"], rows=300)
    trained = Trained(spec, tmp_path / "run")
    trained.learn(range(1, 9))
    metrics = trained.evaluate()
    rows = {row["prompt"]: row for row in preference_rows(300)}
    inputs = Inputs.open(tmp_path / "run" / "inputs", spec)
    held_out = [rows[prompt.text] for prompt in inputs.held_out]
    scores = judged(
        export(trained, tmp_path),
        [(str(row["prompt"]), str(row[key])) for row in held_out for key in ("chosen", "rejected")],
    )
    margins = [right - wrong for right, wrong in zip(scores[::2], scores[1::2], strict=True)]
    assert math.fsum(margins) / len(margins) == pytest.approx(metrics["evaluation/margin"], rel=1e-4)
    assert sum(margin > 0 for margin in margins) / len(margins) == metrics["evaluation/accuracy"] > 0.8
    batch = held_out_batch(spec, inputs, open_codec(spec, str(trained.model)))
    assert batch.response_lengths.max() == 1, "only the output after the last token counts"


@pytest.mark.verify
def test_a_sharded_reward_model_learns_the_same(tmp_path: Path) -> None:
    found = []
    try:
        for engine in ({"kind": "torch", "ranks": 1}, {"kind": "fsdp2", "ranks": 1, "dtype": "float32"}):
            trainer = {"engine": engine, "optimizer": {"learning_rate": 3e-3}}
            spec = preferred_spec(tmp_path, KINDS["reward_model"], rows=120, trainer=trainer)
            trained = Trained(spec, tmp_path / str(engine["kind"]))
            trained.learn(range(1, 4))
            found.append(trained.evaluate())
    finally:
        close_process_group()
    assert found[1] == pytest.approx(found[0], rel=1e-4)
