"""What goes with what: the features of a spec that exclude each other, each pair with the sentence that says why.

Pure. `EXCLUSIONS` is the only place where a pair is refused: reading a spec, `yatt check` and each start take their sentences
from it, `yatt schema` and docs/combinations.md show it, and README's tables are compared with it. Every other pair goes together.
What a value within one section excludes, or a model's folder, is said where that section or folder is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from yatt_core.spec.features import (
    ADAPTER_SYNC,
    ALGORITHM,
    ANSWERED_EVALUATION,
    BATCH_ADVANTAGE,
    CHOSEN_GROUPS,
    CONTINUOUS_ROLLOUT,
    CONTINUOUS_TORCH_ROLLOUT,
    CRITIC,
    CRITIQUE,
    CURRICULUM,
    DATA,
    DELTA_SYNC,
    DYNAMIC_SAMPLING,
    ENDPOINT_JUDGE,
    ENTROPY_BY_SEQUENCE,
    FREEZING_ENTROPY,
    FSDP2_TRAINER,
    GDPO,
    IMAGES,
    LAG,
    LENGTH_PENALTY,
    LORA,
    MEGATRON_TRAINER,
    MODEL,
    OBJECTIVE,
    OVERDISPATCH,
    OWN_WORKLOAD,
    PACKED,
    PERMUTED_ADVANTAGES,
    PREFERENCE_ROWS,
    REASONING_GYM,
    RENDERED,
    REPETITION_PENALTY,
    REPLAYED_SUPPORT,
    REWARD_MODEL,
    REWARD_MODEL_OBJECTIVE,
    REWARD_SCALING,
    REWARDS,
    ROWS_OBJECTIVE,
    SEEING_MODEL,
    SELF_DISTILLATION,
    SEVERAL_STEPS,
    SFT,
    SLICES,
    STREAMED,
    TAIL,
    TEACHERS,
    TOOLS,
    TORCH_JUDGE,
    TORCH_ROLLOUT,
    TORCH_TRAINER,
    VIRTUAL_JUDGE,
    VIRTUAL_ROLLOUT,
    VIRTUAL_TRAINER,
    VLLM_JUDGE,
    VLLM_ROLLOUT,
    WHOLE_RESPONSE_LOSS,
    Feature,
    SpecSections,
)

RefusedFrom = Literal["reading", "starting", "new_runs"]
"""From when on a pair is refused: when a spec is read; by `yatt check` and each start, while `yatt plan` accepts it; or the same
for new runs alone, because runs of earlier versions have it."""
WHEN: Mapping[RefusedFrom, str] = {
    "reading": "refused when the spec is read",
    "starting": "refused by `yatt check` and by each start; `yatt plan` accepts it",
    "new_runs": "refused by `yatt check` and for new runs; runs of earlier versions go on, and `yatt plan` accepts it",
}


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Two features that a spec cannot have together.

    text: begins with the key at fault, and says why and what would be right; {0} and {1} are the words of the two features.
    refused: from when on.
    """

    first: Feature
    second: Feature
    text: str
    refused: RefusedFrom = "reading"

    @property
    def shown(self) -> str:
        """The sentence as it is shown where there is no spec."""
        return self.text.format(self.first.word, self.second.word)

    def sentences(self, spec: SpecSections) -> Iterator[str]:
        """Yields the sentence for each two places in which a spec has both features."""
        for one in self.first.found(spec):
            for other in self.second.found(spec):
                yield self.text.format(one, other)


_MIXED = "rollout.engine and trainer.engine: expected both virtual or both real, not {0} and {1}"
_ROWS = "the run learns from its data and samples nothing"
_UNSEEN = "expected a part of kind function, or prompts without images (leave image_field out)"
_TEXT_JUDGE = f"rewards.parts {{1!r}}: a judge reads texts alone, so it would judge without the images; {_UNSEEN}"
_REAL_JUDGE = "rewards.parts {1!r}: with virtual engines that batch continuously, judges must be virtual too"
_ITSELF = "algorithm.distillation.privileged"
_KNOWN_LATE = "which groups an iteration learns from is known after its rounds"
_STREAMED = "asynchrony.streamed"
_SHARDED = "trainer.engine.kind: {1!r} supports text prompts only; use torch for images"


def _of_second_model(feature: Feature, key: str, who: str, without: str) -> Iterator[Exclusion]:
    """Yields what excludes a model that is used alongside the policy.

    who: what it is, for sentences.
    without: what a spec without it says.
    """
    yield Exclusion(
        feature,
        VIRTUAL_TRAINER,
        f"{key}: a virtual trainer has no model, so {who} cannot be used; write {without}",
    )
    yield Exclusion(
        feature,
        MEGATRON_TRAINER,
        f"{key}: the Megatron-Core engine cannot hold {who} as a second model; write {without}, or train with fsdp2 or torch",
    )
    yield Exclusion(
        feature, IMAGES, f"{key}: {who} supports text prompts only; write {without}, or leave image_field out"
    )


def _of_parts(feature: Feature, sampling: Feature, instead: str, refused: RefusedFrom) -> Iterator[Exclusion]:
    """Yields what excludes responses that may be drawn in parts, each in an iteration of its own.

    sampling: what chooses among the groups of an iteration.
    instead: what would be right in its place.
    """
    key = feature.key
    others: tuple[tuple[Feature, str], ...] = (
        (
            VLLM_ROLLOUT,
            "vLLM does not go on with a response from tokens of older weights; use null, or the torch engine",
        ),
        (sampling, f"which groups an iteration learns from follows from when they complete; use null, or {instead}"),
        (
            CURRICULUM,
            "a curriculum learns from all prompts of an iteration, but some go on; use null, or no data.curriculum",
        ),
        (IMAGES, "prompts with images are answered whole; use null, or leave image_field out"),
        (REPLAYED_SUPPORT, "the support of a token is not sealed with a part of a response; use null, or full"),
    )
    # A slice ends at a token of each response, a tail at one of the iteration, amid a turn or a result.
    if feature is not SLICES:
        others = (*others, (TOOLS, "a response with tool calls is drawn whole; use null, or no rollout.tools"))
    # Runs of earlier versions that have both wait for all of their responses, and must not begin to go on without them.
    if feature is OVERDISPATCH:
        reads = "the judge {1!r} reads whole responses as they end; use null, and rollout.tail in its place"
        judges = (TORCH_JUDGE, VLLM_JUDGE, VIRTUAL_JUDGE, ENDPOINT_JUDGE, REWARD_MODEL)
        others = (*others, *((judge, reads) for judge in judges))
    for other, why in others:
        yield Exclusion(feature, other, f"{key}: {why}", refused)


EXCLUSIONS: tuple[Exclusion, ...] = (
    *(Exclusion(VIRTUAL_ROLLOUT, each, _MIXED) for each in (TORCH_TRAINER, FSDP2_TRAINER, MEGATRON_TRAINER)),
    *(Exclusion(each, VIRTUAL_TRAINER, _MIXED) for each in (TORCH_ROLLOUT, VLLM_ROLLOUT)),
    *(Exclusion(CONTINUOUS_ROLLOUT, each, _REAL_JUDGE) for each in (TORCH_JUDGE, VLLM_JUDGE, REWARD_MODEL)),
    # What the run learns.
    Exclusion(OBJECTIVE, ALGORITHM, "algorithm: objective.kind {0} takes its place; leave algorithm out"),
    Exclusion(
        OBJECTIVE,
        VIRTUAL_TRAINER,
        "objective: a virtual trainer has no model that could learn {0}; use a real one, or null",
    ),
    Exclusion(OBJECTIVE, IMAGES, "objective.kind: {0} supports text prompts only; leave image_field out"),
    Exclusion(OBJECTIVE, CRITIQUE, "rewards.critique: objective.kind {0} learns from whole responses; use null"),
    Exclusion(
        REWARD_MODEL_OBJECTIVE,
        MEGATRON_TRAINER,
        "objective.kind: Megatron-Core cannot train a reward model; train with fsdp2 or torch",
    ),
    Exclusion(
        REWARD_MODEL_OBJECTIVE,
        LORA,
        "trainer.lora: adapters leave the new head of a reward model untrained; use null",
    ),
    *(
        Exclusion(OWN_WORKLOAD, each, f"{key}: the workload {{0}} {why}")
        for each, key, why in (
            (DATA, "data.sources", "builds its own inputs; leave data out"),
            (MODEL, "model", "builds its own model; leave model out"),
            (OBJECTIVE, "objective", "has an objective of its own; use null"),
            (ALGORITHM, "algorithm", "has an algorithm of its own; leave algorithm out"),
            (SFT, "sft", "begins with its own state; use null"),
            (REWARDS, "rewards.parts", "has no responses to score; leave rewards out"),
            (ANSWERED_EVALUATION, "evaluation.sampling, promotion and suites", "evaluates itself; leave them out"),
            (CURRICULUM, "data.curriculum", "draws by itself; use null"),
            (TOOLS, "rollout.tools", "has no responses that could call tools; use null"),
            (REPETITION_PENALTY, "rollout.repetition_penalty", "has no tokens that could be repeated; expected 1"),
            (DYNAMIC_SAMPLING, "dynamic_sampling", "has no responses to choose from; leave it out"),
            (SLICES, "rollout.slice_tokens", "has no responses that could be drawn in slices; use null"),
            (TAIL, "rollout.tail", "has no responses that could go on in a later iteration; use null"),
            (LAG, "asynchrony.lag", "has no controllers that could collect ahead; expected 0"),
            (STREAMED, "asynchrony.streamed", "learns from an iteration as a whole; expected false"),
            (LORA, "trainer.lora", "has a model of its own; use null"),
            (DELTA_SYNC, "trainer.sync", "sends weights, if to anybody, whole; expected full"),
            (PACKED, "trainer.engine.packed", "batches by itself; expected false"),
            (VIRTUAL_ROLLOUT, "rollout.engine.kind", "is not simulated; expected torch, or no rollout"),
            (VLLM_ROLLOUT, "rollout.engine.kind", "answers no prompts; expected torch, or no rollout"),
            (
                CONTINUOUS_TORCH_ROLLOUT,
                "rollout.engine.continuous",
                "has no responses that could be batched; expected false",
            ),
            (VIRTUAL_TRAINER, "trainer.engine.kind", "is not simulated; expected torch (given: {1})"),
            (FSDP2_TRAINER, "trainer.engine.kind", "divides its own state; expected torch (given: {1})"),
            (MEGATRON_TRAINER, "trainer.engine.kind", "divides its own state; expected torch (given: {1})"),
        )
    ),
    Exclusion(ROWS_OBJECTIVE, SFT, f"sft: {_ROWS}; use null, and objective.kind sft in a run of its own"),
    Exclusion(ROWS_OBJECTIVE, REWARDS, f"rewards.parts: {_ROWS}; leave rewards out"),
    Exclusion(
        ROWS_OBJECTIVE, ANSWERED_EVALUATION, f"evaluation.sampling, promotion and suites: {_ROWS}; leave them out"
    ),
    Exclusion(ROWS_OBJECTIVE, CURRICULUM, f"data.curriculum: {_ROWS}; use null"),
    Exclusion(ROWS_OBJECTIVE, TOOLS, f"rollout.tools: {_ROWS}; use null"),
    Exclusion(ROWS_OBJECTIVE, DYNAMIC_SAMPLING, f"dynamic_sampling: {_ROWS}; leave it out"),
    Exclusion(ROWS_OBJECTIVE, LAG, f"asynchrony.lag: {_ROWS}; expected 0"),
    # Responses that go on in a later iteration.
    *(Exclusion(ROWS_OBJECTIVE, each, f"{each.key}: {_ROWS}; use null") for each in (SLICES, TAIL)),
    Exclusion(
        SLICES, TAIL, "rollout.tail: an iteration ends by it, or by rollout.slice_tokens; use null for one of the two"
    ),
    *(
        each
        for feature in (SLICES, TAIL)
        for each in _of_parts(feature, DYNAMIC_SAMPLING, "leave dynamic_sampling out", "reading")
    ),
    *(
        Exclusion(
            feature,
            STREAMED,
            f"{feature.key}: {_KNOWN_LATE}, but asynchrony.streamed learns before; use null, or false",
        )
        for feature in (SLICES, TAIL)
    ),
    *_of_parts(OVERDISPATCH, CHOSEN_GROUPS, "dynamic_sampling.kind all without a deadline", "new_runs"),
    Exclusion(PREFERENCE_ROWS, REASONING_GYM, "data.sources: reasoning_gym has answers, but no preferences; use files"),
    # Second models.
    *_of_second_model(TEACHERS, "algorithm.distillation", "a teacher", "null"),
    *_of_second_model(CRITIC, "algorithm.critic", "a critic", "null, with another advantage than gae"),
    Exclusion(
        SELF_DISTILLATION,
        VIRTUAL_TRAINER,
        f"{_ITSELF}: a virtual trainer has no model, so it cannot be its own teacher; write distillation: null",
    ),
    Exclusion(
        SELF_DISTILLATION,
        IMAGES,
        f"{_ITSELF}: it supports text prompts only; write distillation: null, or leave image_field out",
    ),
    Exclusion(
        SELF_DISTILLATION,
        RENDERED,
        f"{_ITSELF}: the texts of data.sources.{{1}} are rendered, so that the answer has no place in them; write distillation: "
        "null, or leave rendered out",
    ),
    # Rewards of tokens.
    Exclusion(
        CRITIQUE,
        CRITIC,
        "algorithm.advantage: with rewards.critique, tokens have rewards of their own; expected another than gae",
    ),
    Exclusion(
        CRITIQUE, GDPO, "algorithm.advantage: gdpo reads the rewards of parts; expected another, or no rewards.critique"
    ),
    Exclusion(
        CRITIQUE,
        LENGTH_PENALTY,
        "algorithm.length_penalty: changes rewards of responses; expected null, or no rewards.critique",
    ),
    Exclusion(
        CRITIQUE,
        REWARD_SCALING,
        "algorithm.reward_scaling: rewards of tokens are not scaled; expected none, or no rewards.critique",
    ),
    Exclusion(
        CRITIQUE,
        WHOLE_RESPONSE_LOSS,
        "algorithm.loss.kind: {1} moves all tokens of a response together, but with rewards.critique they have rewards of their "
        "own; expected clip or another loss of single tokens",
    ),
    Exclusion(
        CRITIQUE,
        TOOLS,
        "rewards.critique: responses with tool calls are not cut into steps; expected null, or no rollout.tools",
    ),
    # The sampler's distribution.
    Exclusion(
        REPLAYED_SUPPORT,
        VIRTUAL_ROLLOUT,
        "algorithm.sampler_support: a virtual engine has no probabilities; expected full",
    ),
    Exclusion(
        REPLAYED_SUPPORT,
        REPETITION_PENALTY,
        "algorithm.sampler_support: replay renormalises the model's probabilities, which rollout.repetition_penalty changes; "
        "expected repetition_penalty 1, or full (given: {1})",
    ),
    # What is trained, and how it is sent.
    Exclusion(LORA, VIRTUAL_TRAINER, "trainer.lora: a virtual trainer has no weight matrices for adapters; use null"),
    Exclusion(
        LORA,
        MEGATRON_TRAINER,
        "trainer.lora: LoRA is not supported with Megatron-Core; use null, or train with fsdp2 or torch",
    ),
    Exclusion(
        DELTA_SYNC,
        VIRTUAL_ROLLOUT,
        "trainer.sync: delta needs rollout.engine.kind torch or vllm (given: {1}); expected full",
    ),
    Exclusion(
        DELTA_SYNC, LORA, "trainer.sync: delta sends the changes of all weights; expected full with trainer.lora"
    ),
    # Learning while generating.
    Exclusion(
        STREAMED,
        OBJECTIVE,
        f"{_STREAMED}: objective.kind {{1}} is learnt from whole batches; expected false, or reinforcement learning",
    ),
    Exclusion(
        STREAMED,
        SEVERAL_STEPS,
        f"{_STREAMED}: several optimizer steps an iteration draw their samples from the whole batch, and only the first could be "
        "taken under the weights that generate; expected false, or algorithm.epochs 1 and mini_batches 1",
    ),
    Exclusion(
        STREAMED,
        BATCH_ADVANTAGE,
        f"{_STREAMED}: the advantage {{1}} reads the rewards of the whole batch; expected false, or group_std, group_mean, "
        "leave_one_out, max_rl or group_tokens",
    ),
    Exclusion(
        STREAMED,
        DYNAMIC_SAMPLING,
        f"{_STREAMED}: dynamic_sampling decides at the end of a wave which of its groups are learnt from; expected false, or the "
        "default",
    ),
    Exclusion(
        STREAMED,
        PERMUTED_ADVANTAGES,
        f"{_STREAMED}: algorithm.permute_advantages permutes those of the whole batch; expected false for one of the two",
    ),
    Exclusion(
        STREAMED,
        FREEZING_ENTROPY,
        f"{_STREAMED}: the entropy method chooses among the tokens of the whole batch; expected false, or a bonus",
    ),
    Exclusion(
        STREAMED,
        ENTROPY_BY_SEQUENCE,
        f"{_STREAMED}: gradients are divided once, at the end, but the entropy bonus is a mean over tokens and the loss is not; "
        "expected false, or algorithm.aggregation token_mean",
    ),
    Exclusion(
        STREAMED,
        MEGATRON_TRAINER,
        f"{_STREAMED}: Megatron-Core sums gradients over its ranks at the end of each pass, so that they cannot be added up "
        "shard by shard; expected false, or train with torch or fsdp2",
    ),
    # Images.
    Exclusion(IMAGES, PACKED, "trainer.engine.packed: prompts with images cannot be packed; expected false"),
    *(Exclusion(IMAGES, each, _SHARDED, "starting") for each in (FSDP2_TRAINER, MEGATRON_TRAINER)),
    Exclusion(
        SEEING_MODEL,
        ADAPTER_SYNC,
        "trainer.lora.sync: engines merge adapters into the tensors of the model's folder, in which those of a model that sees "
        "images have other names; expected merged",
        "starting",
    ),
    *(
        Exclusion(IMAGES, each, _TEXT_JUDGE, "new_runs")
        for each in (TORCH_JUDGE, VLLM_JUDGE, ENDPOINT_JUDGE, REWARD_MODEL)
    ),
)
"""The pairs that do not go together."""


def refusals(spec: SpecSections, refused: RefusedFrom) -> list[str]:
    """Returns the sentences of all pairs of a spec that are refused from a moment on, each beginning with its key."""
    found = (line for each in EXCLUSIONS if each.refused == refused for line in each.sentences(spec))
    return list(dict.fromkeys(found))


def is_excluded(feature: Feature, spec: SpecSections) -> bool:
    """Returns True if a spec has a feature together with one that it does not go with, from whenever on that is refused."""
    pairs = (each for each in EXCLUSIONS if feature in (each.first, each.second))
    return any(True for each in pairs for _ in each.sentences(spec))


def checks_on_reading(spec: SpecSections) -> Iterator[Callable[[], Iterator[str]]]:
    """Yields a check for each pair that is refused when a spec is read.

    They are separate so that those that do not read a wrong key can be made beside it.
    """
    return (partial(each.sentences, spec) for each in EXCLUSIONS if each.refused == "reading")


def described_exclusions() -> list[dict[str, object]]:
    """Returns the table as plain values, for the JSON schema."""
    return [
        {
            "features": [each.first.name, each.second.name],
            "keys": [each.first.key, each.second.key],
            "refused": WHEN[each.refused],
            "says": each.shown,
        }
        for each in EXCLUSIONS
    ]
