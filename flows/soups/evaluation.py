"""Measures the rewards of merged weights on a run's held-out prompts, in this process.

Consumes the run's spec, its folder with inputs and reward files, and weights. Produces the mean value of each part of the reward
that is a function. Responses are sampled as in training; their seeds depend on the spec's seed, the prompt and the sample alone,
so that all models answer with the same noise and a repetition gives the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from yatt_core.collection.shard_rows import BatchMember, next_turn_request
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.input_building.materialise import initial_model
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import WorkKey
from yatt_core.prompts.codec import encode_question, open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.stream import media_of
from yatt_core.protocols.engines import Tensors
from yatt_core.protocols.generation import GenerateResult
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec import RunSpec
from yatt_core.tools.dialogue import Dialogue, hold
from yatt_core.tools.toolbox import Toolbox

PHASE = "soup"


class RewardMeter:
    """Engine, prompts and reward functions of a run; measures one model after another."""

    def __init__(self, spec: RunSpec, run: str, run_folder: Path, samples: int) -> None:
        """Loads everything but weights.

        samples: responses to each prompt.
        """
        model = initial_model(spec, run_folder)
        self._spec = spec
        self._run_folder = run_folder
        self._key = WorkKey(run, 0, 0, PHASE)
        self._codec = open_codec(spec, model)
        self._scorer = RewardScorer(spec.rewards, run_folder)
        self._engine = build_rollout_engine(spec, model, run_folder / INPUTS)
        held_out = Inputs.open(run_folder / INPUTS, spec).held_out
        self._asked = [
            (BatchMember(ordinal, sample), prompt)
            for ordinal, prompt in enumerate(held_out)
            for sample in range(samples)
        ]
        self._models = 0

    @property
    def prompts(self) -> int:
        """Number of held-out prompts."""
        return len({member.ordinal for member, _ in self._asked})

    def measure(self, weights: Tensors) -> Mapping[str, float]:
        """Returns the mean value of each function of the reward. Raises what a reward function raises."""
        self._engine.update_weights(weights, self._models)
        values: dict[str, list[float]] = {name: [] for name in self._scorer.functions}
        with closing(Toolbox(self._spec.rollout.tools, self._run_folder)) as toolbox:
            for scored in self._batches(toolbox):
                for score in self._scorer.score(scored):
                    for name in values:
                        values[name].append(score.parts[name])
        self._models += 1
        return {name: math.fsum(found) / len(found) for name, found in values.items()}

    def _batches(self, toolbox: Toolbox) -> list[list[Scored]]:
        size = self._spec.rollout.batch_samples
        pieces = [self._asked[start : start + size] for start in range(0, len(self._asked), size)]
        return [
            self._answered([member for member, _ in piece], [prompt for _, prompt in piece], toolbox)
            for piece in pieces
        ]

    def _answered(self, members: list[BatchMember], prompts: list[Prompt], toolbox: Toolbox) -> list[Scored]:
        codec = self._codec
        spec = self._spec
        tokens = [encode_question(prompt, codec) for prompt in prompts]

        def generate(dialogue: Dialogue) -> GenerateResult:
            request = next_turn_request(
                spec=spec,
                key=self._key,
                members=members,
                dialogue=dialogue,
                stop=codec.stop_tokens,
                version=self._models,
            )
            return self._engine.generate(request)

        responses = hold(Dialogue(spec.rollout, codec, tokens, media_of(prompts)), generate, toolbox)
        answered = zip(members, prompts, responses, strict=True)
        return [
            Scored(prompt, response.completion, member.ordinal, member.sample) for member, prompt, response in answered
        ]
