"""Tokens of tool results: context for what follows, but not learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.train.support import MAX_NEW_TOKENS, make_model_folder, make_spec
from yatt_core.engines.train.base.preparation import Preparer
from yatt_core.engines.train.model.forward import PolicyForward, assemble
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.learner import PolicyLearner, update_metrics
from yatt_core.engines.train.steps.plan import PlanShape, plan_step
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.keys import WorkKey
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec.sections.trainer import AdamWSpec
from yatt_core.wire.ragged import offsets_of

PROMPT = [3, 4, 5]
CALL = [6, 7, 1]
RESULT = [11, 12, 13, 14]
REST = [8, 9, 1]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("model"))


def batch_of(*samples: tuple[list[int], list[int], list[bool], float]) -> ExperienceBatch:
    """Builds a batch from samples of prompt, response, mask and advantage (as reward)."""
    responses = [response for _, response, _, _ in samples]
    lengths = np.array([len(response) for response in responses])
    count = len(samples)
    mask = np.array([counts for _, _, row, _ in samples for counts in row])
    sampler = -2.0 - 0.1 * np.concatenate(responses)
    return ExperienceBatch(
        ordinals=np.arange(count),
        samples=np.zeros(count, np.int32),
        prompt_tokens=np.concatenate([prompt for prompt, _, _, _ in samples]).astype(np.int32),
        prompt_offsets=offsets_of(np.array([len(prompt) for prompt, _, _, _ in samples])),
        response_tokens=np.concatenate(responses).astype(np.int32),
        response_offsets=offsets_of(lengths),
        log_probs_sampler=np.where(mask, sampler, 0.0).astype(np.float32),
        loss_mask=mask,
        rewards=np.array([reward for _, _, _, reward in samples]),
        reward_parts={},
        correct=np.zeros(count, bool),
        truncated=np.zeros(count, bool),
        weight_versions=np.zeros(count, np.int32),
    )


OTHER = ([3, 9], [10, 2, 1], [True] * 3, -0.4)
WITH_TOOL = (PROMPT, [*CALL, *RESULT, *REST], [True] * 3 + [False] * 4 + [True] * 3, 0.7)


def learn(
    folder: Path, batch: ExperienceBatch, aggregation: str, reuse: bool, packed: bool = False
) -> tuple[torch.Tensor, dict[str, float]]:
    """Returns the gradients of the whole batch and its metrics.

    reuse: use the step's own log-probabilities as the old ones.
    """
    algorithm = {
        "aggregation": aggregation,
        "kl": {"coefficient": 0.05},
        # A bonus is of the mean over tokens; it does not scale with the number of samples, as the rest does.
        "entropy": None if aggregation == "fixed_length" else {"kind": "bonus", "coefficient": 0.01},
        "importance_correction": {"kind": "truncate", "cap": 3.0},
    }
    spec = make_spec(algorithm=algorithm)
    model = load_causal_lm(str(folder), "float32")
    forward = PolicyForward(model, 0.8, "float32")
    optimizer = FlatAdamW(model, AdamWSpec())
    rows = np.arange(len(batch))
    old = np.zeros(len(batch.response_tokens), np.float32)
    micro_batch = assemble(batch, rows)
    with torch.no_grad():
        old[micro_batch.positions] = forward.log_probs(micro_batch).numpy() + 0.05
    columns = PreparedColumns(
        batch.ordinals,
        batch.samples,
        batch.rewards,
        batch.response_offsets,
        log_probs_old=None if reuse else old,
        log_probs_ref=old,
    )
    sums = PolicyLearner(spec, forward, optimizer, Collective()).gradients(
        batch, columns, plan_step(batch.lengths, rows, 1, 10_000, packed)
    )
    return optimizer.gradients.clone(), update_metrics(spec, [sums], [1.0])


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_the_gradient_is_that_of_the_policys_turns_with_the_result_as_context(
    model_folder: Path, aggregation: str, reuse: bool
) -> None:
    """Compares a sample with a tool result with the same policy tokens as two samples, one for each of the turns.

    The second sample's prompt is everything before the second turn.
    """
    found, metrics = learn(model_folder, batch_of(WITH_TOOL, OTHER), aggregation, reuse)
    first = (PROMPT, CALL, [True] * 3, 0.7)
    second = ([*PROMPT, *CALL, *RESULT], REST, [True] * 3, 0.7)
    apart = batch_of(first, second, OTHER)
    expected, split = learn(model_folder, apart, aggregation, reuse)
    # sequence_mean: 1/2 x (1/6 of each token) with the tool, 1/3 x (1/3 of each token) without; so the weights differ.
    if aggregation == "sequence_mean":
        alone, metrics = learn(model_folder, batch_of(WITH_TOOL), aggregation, reuse)
        parts, split = learn(model_folder, batch_of(first, second), aggregation, reuse)
        torch.testing.assert_close(alone, parts, atol=1e-6, rtol=0)
    elif aggregation == "fixed_length":
        torch.testing.assert_close(found, expected * 3 / 2, atol=1e-6, rtol=0)
    else:
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert float(found.abs().max()) > 1e-3
    for name in (
        "entropy",
        "kl",
        "clip_fraction",
        "ratio_max",
        "ratio_min",
        "train_rollout_logprob_diff_mean",
        "train_rollout_logprob_diff_max",
        "tokens",
    ):
        assert metrics[name] == pytest.approx(split[name], abs=1e-5), name


def test_values_recorded_at_result_tokens_do_not_matter(model_folder: Path) -> None:
    batch = batch_of(WITH_TOOL, OTHER)
    other = replace(
        batch, log_probs_sampler=np.where(batch.loss_mask, batch.log_probs_sampler, -50.0).astype(np.float32)
    )
    one, metrics = learn(model_folder, batch, "token_mean", False)
    two, others = learn(model_folder, other, "token_mean", False)
    assert torch.equal(one, two)
    assert metrics == others
    assert metrics["tokens"] == 9


def test_packed_samples_learn_the_same(model_folder: Path) -> None:
    batch = batch_of(WITH_TOOL, OTHER, WITH_TOOL)
    padded, metrics = learn(model_folder, batch, "token_mean", False)
    packed, others = learn(model_folder, batch, "token_mean", False, packed=True)
    torch.testing.assert_close(packed, padded, atol=1e-6, rtol=0)
    assert metrics["tokens"] == others["tokens"] == 15


def test_prepared_columns_are_zero_at_result_tokens(model_folder: Path) -> None:
    spec: Any = make_spec(
        algorithm={"mini_batches": 2, "kl": {"coefficient": 0.1, "where": "reward"}}, rollout={"samples_per_prompt": 2}
    )
    model = load_causal_lm(str(model_folder), "float32")
    forward = PolicyForward(model, 0.8, "float32")
    optimizer = FlatAdamW(model, AdamWSpec())
    batch = replace(batch_of(WITH_TOOL, OTHER), ordinals=np.zeros(2, np.int64), samples=np.arange(2, dtype=np.int32))
    reference = optimizer.values.detach().clone() * 1.05
    task = BatchTask(WorkKey("run", 0, 1, "prepare"), 1, ())
    made = Preparer(spec, forward, optimizer, Collective()).prepare(batch, PlanShape(1, 10_000, 1, 1), reference, task)
    for column in (made.columns.log_probs_old, made.columns.log_probs_ref):
        assert column is not None
        assert not column[~batch.loss_mask].any()
        assert column[batch.loss_mask].all()
    assert made.columns.log_probs_old is not None and made.columns.log_probs_ref is not None
    difference = made.columns.log_probs_old.astype(np.float64) - made.columns.log_probs_ref
    assert made.metrics["kl"] == pytest.approx(difference.sum() / 9)
    assert len(WITH_TOOL[1]) > MAX_NEW_TOKENS, "results do not count towards the policy's budget"
