"""How a shard's prompts become rows: fixed batches, seeds by ordinal, tables by schema."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spec.trees import VIRTUAL, spec
from yatt_core.collection.shard_rows import (
    members_of,
    next_turn_request,
    response_schema,
    response_table,
    score_schema,
    score_table,
    split_batches,
    training_request,
    turn_result,
    turn_table,
)
from yatt_core.experience.table import canonical_table, experience_schema, support_column
from yatt_core.keys import WorkKey, sample_seed
from yatt_core.prompts.stream import Prompt, media_of
from yatt_core.prompts.virtual_codec import VirtualCodec
from yatt_core.protocols.generation import (
    FINISHED_LENGTH,
    FINISHED_STOP,
    GenerateResult,
    Returned,
    resumed_request,
    support_fields,
)
from yatt_core.protocols.receipts import PromptRef
from yatt_core.rewards.scoring import SampleScore
from yatt_core.tools.dialogue import Dialogue, greedy_request
from yatt_core.wire.support import Support

SPEC = spec(**VIRTUAL, seed=5, rollout__samples_per_prompt=2, rollout__max_new_tokens=4, rollout__temperature=0.5)
KEY = WorkKey("run", branch=1, iteration=3, phase="collect", wave=0, shard=2)
REFS = [PromptRef(ordinal=40, source=0, position=7), PromptRef(ordinal=41, source=1, position=0)]
PROMPTS = [
    Prompt(0, 7, "train/0/7", "ab", "ba", {"question": "ab"}),
    Prompt(1, 0, "train/1/0", "c", None, {"question": "c"}),
]
TOKENS = [np.array([97, 98], np.int32), np.array([99], np.int32)]
RESULT = GenerateResult(
    tokens=np.array([5, 0, 6, 7, 8, 9, 0, 4, 3, 0], np.int32),
    log_probs=np.linspace(-1, -0.1, 10).astype(np.float32),
    lengths=np.array([2, 4, 1, 3], np.int32),
    finish=np.array([FINISHED_STOP, FINISHED_LENGTH, FINISHED_STOP, FINISHED_STOP], np.int8),
    weight_version=2,
    seconds=0.1,
)
CODEC = VirtualCodec(vocabulary=100, longest=16)


@given(st.integers(0, 70), st.integers(2, 9), st.integers(2, 40))
def test_batches_cover_a_shard_in_order_within_their_bound(prompts, samples, batch):
    batch = max(batch, samples)
    batches = split_batches(prompts, spec(rollout__samples_per_prompt=samples, rollout__batch_samples=batch))
    assert [prompt for part in batches for prompt in part] == list(range(prompts))
    assert all(0 < len(part) * samples <= batch for part in batches)
    assert all((len(part) + 1) * samples > batch for part in batches[:-1]), "a batch before the last one is not full"


def test_seeds_follow_the_ordinals():
    request = training_request(SPEC, KEY, REFS, TOKENS, (0,), version=2)
    assert request.seeds.dtype == np.uint64
    assert request.seeds.tolist() == [[sample_seed(5, 1, 3, ref.ordinal, sample) for sample in (0, 1)] for ref in REFS]
    assert (request.temperature, request.top_p, request.max_new_tokens, request.greedy) == (0.5, 1.0, 4, False)
    assert (request.stop_tokens, request.weight_version) == ((0,), 2)


def test_requests_carry_the_settings_of_sampling_and_the_minimum_in_the_first_turn_only():
    given = {"top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2, "min_new_tokens": 2, "top_p": 0.9}
    spec = SPEC.model_copy(update={"rollout": SPEC.rollout.model_copy(update=given)})
    request = training_request(spec, KEY, REFS, TOKENS, (0,), 2)
    assert {name: getattr(request, name) for name in given} == given
    plain = training_request(SPEC, KEY, REFS, TOKENS, (0,), 2)
    assert (plain.top_k, plain.min_p, plain.repetition_penalty, plain.min_new_tokens) == (0, 0.0, 1.0, 0)
    later = resumed_request(request, Returned((0, 1), (1, 1)))
    assert {name: getattr(later, name) for name in given} == given
    second = SimpleNamespace(
        members=[0], responses=[SimpleNamespace(turns=1)], limits=lambda numbers: np.array([3], np.int32),
        contexts=lambda numbers: TOKENS[:1], media=lambda numbers: (), question_lengths=lambda numbers: np.ones(1, np.int32),
    )  # fmt: skip
    turn = next_turn_request(spec, KEY, members_of(spec, REFS), second, (0,), 2)
    assert {name: getattr(turn, name) for name in given} == given | {"min_new_tokens": 0}
    second.responses[0].turns = 0
    again = next_turn_request(spec, KEY, members_of(spec, REFS), second, (0,), 2, numbers=[0])
    assert {name: getattr(again, name) for name in given} == given, "a first turn that is requested alone"
    assert again.seeds[0, 0] == request.seeds[0, 0] != turn.seeds[0, 0]


def test_seeds_do_not_depend_on_shards_batches_positions_or_waves():
    whole = training_request(SPEC, KEY, REFS, TOKENS, (0,), 2).seeds
    other = WorkKey("another-run", branch=1, iteration=3, phase="collect", wave=4, shard=9)
    moved = PromptRef(ordinal=41, source=0, position=99)
    alone = training_request(SPEC, other, [moved], TOKENS[1:], (0,), 2).seeds
    assert alone.tolist() == whole[1:].tolist()


@pytest.mark.parametrize("key", [WorkKey("run", 2, 3, "collect"), WorkKey("run", 1, 4, "collect")])
def test_another_branch_or_iteration_has_other_seeds(key):
    first = training_request(SPEC, KEY, REFS, TOKENS, (0,), 2).seeds
    assert not np.intersect1d(first, training_request(SPEC, key, REFS, TOKENS, (0,), 2).seeds).size


def test_a_greedy_request_has_one_answer_per_prompt():
    request = greedy_request(Dialogue(SPEC.rollout, CODEC, TOKENS), (0,), version=2)
    assert request.greedy
    assert request.seeds.shape == (2, 1)
    assert request.max_new_tokens == 4


def responses():
    """Returns the responses that a single-turn dialogue makes of the engine's answer."""
    dialogue = Dialogue(SPEC.rollout, CODEC, [tokens for tokens in TOKENS for _ in range(2)])
    assert dialogue.hear(RESULT) == {}
    assert dialogue.members == ()
    return dialogue.responses


def test_the_table_of_responses():
    table = response_table(REFS, PROMPTS, TOKENS, responses(), 2)
    assert table.schema == response_schema()
    rows = table.to_pylist()
    assert [(row["prompt_ordinal"], row["sample"]) for row in rows] == [(40, 0), (40, 1), (41, 0), (41, 1)]
    assert [row["source"] for row in rows] == [0, 0, 1, 1]
    assert [row["prompt_id"] for row in rows] == ["train/0/7"] * 2 + ["train/1/0"] * 2
    assert [row["prompt_tokens"] for row in rows] == [[97, 98], [97, 98], [99], [99]]
    assert [row["response_tokens"] for row in rows] == [[5, 0], [6, 7, 8, 9], [0], [4, 3, 0]]
    assert [row["response"] for row in rows] == ["5", "6 7 8 9", "", "4 3"]
    assert [row["finish"] for row in rows] == ["stop", "length", "stop", "stop"]
    assert [row["truncated"] for row in rows] == [False, True, False, False]
    assert [row["loss_mask"] for row in rows] == [[True] * len(row["response_tokens"]) for row in rows]
    assert (
        np.concatenate([row["log_probs_sampler"] for row in rows]).astype(np.float32).tolist()
        == RESULT.log_probs.tolist()
    )
    assert {row["weight_version"] for row in rows} == {2}


def spec_of_parts(*names, **rest):
    return spec(rewards__parts=[{"name": name, "function": "virtual_score", **rest} for name in names])


def test_a_missing_score_has_a_column_where_scores_may_be_missing():
    scores = [SampleScore({"a": 0.5}, 0.5, False), SampleScore({"a": 0.0}, 0.0, False, "a: late", ("a/time_limit",))]
    assert "unscored" not in score_table(spec_of_parts("a"), scores).column_names
    scored = score_table(spec_of_parts("a", on_failure="mask"), scores)
    assert scored.column("unscored").to_pylist() == [None, "a/time_limit"]


def test_responses_and_scores_combine_into_experience():
    scores = [SampleScore({"b": 1.0 * i, "a": 0.5}, 1.5, i == 1, "b: late" if i == 2 else "") for i in range(4)]
    parts = ["b", "a"]
    scored = score_table(spec_of_parts(*parts), scores)
    assert scored.schema == score_schema(parts)
    assert scored.column("reward/b").to_pylist() == [0.0, 1.0, 2.0, 3.0]
    assert scored.column("correct").to_pylist() == [False, True, False, False]
    assert scored.column("reward_error").to_pylist() == [None, None, "b: late", None]
    table = response_table(REFS, PROMPTS, TOKENS, responses(), 2)
    for field in scored.schema:
        table = table.append_column(field, scored.column(field.name))
    assert canonical_table(table).num_rows == 4


@pytest.mark.parametrize("parts", [[], ["a"], ["a", "b"]])
def test_the_two_schemas_partition_the_experience(parts):
    made = response_schema()
    scores = score_schema(parts)
    assert not set(made.names) & set(scores.names)
    assert {*made, *scores} == set(experience_schema(parts))


def test_images_are_passed_as_addresses():
    shown = [replace(PROMPTS[0], media=("a" * 64, "b" * 64)), PROMPTS[1]]
    media = media_of(shown)
    assert media == (("a" * 64, "b" * 64), ()) and media_of(PROMPTS) == ()
    assert training_request(SPEC, KEY, REFS, TOKENS, (0,), 2, media).media == media
    assert greedy_request(Dialogue(SPEC.rollout, CODEC, TOKENS, media), (0,), 2).media == media
    table = response_table(REFS, shown, TOKENS, responses(), 2, with_images=True)
    assert table.column("media").to_pylist() == [f"{'a' * 64} {'b' * 64}"] * 2 + [""] * 2
    assert table.drop_columns(["media"]).equals(response_table(REFS, shown, TOKENS, responses(), 2))


def test_a_run_with_images_has_their_column_even_for_a_batch_without_any():
    table = response_table(REFS, PROMPTS, TOKENS, responses(), 2, with_images=True)
    assert table.column("media").to_pylist() == [""] * 4


SUPPORT = Support(np.arange(21, dtype=np.int32), np.array([1, 2, 3, 4, 1, 2, 3, 1, 2, 2], np.int32))


def test_supports_become_columns_and_survive_the_log_of_turns():
    result = replace(RESULT, **support_fields(SUPPORT))
    logged = turn_result(turn_table(result), 2).support
    assert (logged.tokens.tolist(), logged.sizes.tolist()) == (SUPPORT.tokens.tolist(), SUPPORT.sizes.tolist())
    assert turn_result(turn_table(RESULT), 2).support is None
    dialogue = Dialogue(SPEC.rollout, CODEC, [tokens for tokens in TOKENS for _ in range(2)])
    dialogue.hear(result)
    table = response_table(REFS, PROMPTS, TOKENS, dialogue.responses, 2)
    assert table.column("support_sizes").to_pylist() == [[1, 2], [3, 4, 1, 2], [3], [1, 2, 2]]
    assert table.column("support_tokens").to_pylist()[2:] == [[13, 14, 15], [16, 17, 18, 19, 20]]
    assert support_column(table).tokens.tolist() == SUPPORT.tokens.tolist()
    assert table.schema == response_schema(("support_tokens", "support_sizes"))


def test_requests_ask_for_supports_if_the_update_replays_them():
    replaying = spec(algorithm__sampler_support="replay", rollout__top_k=4)
    assert training_request(replaying, KEY, REFS, TOKENS, (0,), 2).record_support
    assert not training_request(SPEC, KEY, REFS, TOKENS, (0,), 2).record_support
    assert not greedy_request(Dialogue(replaying.rollout, CODEC, TOKENS), (0,), version=2).record_support
