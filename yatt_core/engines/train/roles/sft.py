"""Supervised fine-tuning: a few steps on demonstrations, until a probe is answered well enough.

Consumes the run's demonstrations and probe tasks; changes the weights in place. Batches are seeded, and
gradients and the number of correct probe answers are summed over the ranks, so every rank takes the same steps
and stops after the same number of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from yatt_core.engines.images import ImageReader
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.runners import open_runner
from yatt_core.engines.train.steps.supervised import (
    Demonstrations,
    SupervisedStep,
    demonstrations_of,
    sft_learning_rate,
)
from yatt_core.errors import ConfigurationError
from yatt_core.inputs.reader import Inputs
from yatt_core.keys import stable_seed
from yatt_core.prompts.codec import TextCodec, encode_question, open_codec
from yatt_core.prompts.replies import EncodedReply
from yatt_core.prompts.rows import encode_demonstration
from yatt_core.prompts.stream import Prompt, media_of
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.generation import GenerateResult
from yatt_core.rewards.process import reward_process
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec.run import RunSpec
from yatt_core.tools.dialogue import Dialogue, DialogueResponse, greedy_request, hold
from yatt_core.tools.toolbox import Toolbox

Int32 = npt.NDArray[np.int32]


def encode_demonstrations(prompts: Sequence[Prompt], codec: TextCodec, several_turns: bool = False) -> Demonstrations:
    """Encodes demonstrations, in their order.

    several_turns: whether the texts of answers may contain tool results, which do not count.
    """
    questions = list[Int32]()
    replies = list[EncodedReply]()
    for prompt in prompts:
        reply = encode_demonstration(prompt, codec, several_turns)
        question = encode_question(prompt, codec)
        questions.append(question[: len(question) - reply.missing])
        replies.append(reply)
    tokens = [reply.tokens for reply in replies]
    learnt = [reply.learnt for reply in replies]
    return demonstrations_of(questions, tokens, learnt, media_of(prompts))


@dataclass(frozen=True, slots=True)
class SftResult:
    """The number of steps taken, the last step's loss, and the last probe's accuracy."""

    steps: int
    loss: float
    accuracy: float


def fine_tune(
    spec: RunSpec,
    context: RankContext,
    step: SupervisedStep,
    probe_model: Callable[[], nn.Module],
    reader: ImageReader | None,
) -> SftResult:
    """Trains on the run's demonstrations; the arguments are those of `SftTraining`."""
    codec = open_codec(spec, context.model_path)
    inputs = Inputs.open(context.inputs_folder, spec)
    return SftTraining(
        spec=spec, supervised=step, probe_model=probe_model, codec=codec, reader=reader, run_folder=context.run_folder
    ).run(inputs)


class SftTraining:
    """Trains on demonstrations; every rank has an instance.

    probe_model: returns a transformers model with the current weights.
    run_folder: folder of the run, which has its own copies of reward functions' files.
    """

    def __init__(
        self,
        spec: RunSpec,
        supervised: SupervisedStep,
        probe_model: Callable[[], nn.Module],
        codec: TextCodec,
        reader: ImageReader | None,
        run_folder: Path,
    ) -> None:
        if spec.sft is None:
            raise ConfigurationError("sft: missing from the spec")
        self._spec = spec
        self._sft = spec.sft
        self._supervised = supervised
        self._collective = supervised.collective
        self._probe_model = probe_model
        self._codec = codec
        self._reader = reader
        self._run_folder = run_folder

    def run(self, inputs: Inputs) -> SftResult:
        """Takes steps until the probe's accuracy is reached or the maximum number of steps is taken."""
        prompts = inputs.demonstrations(self._sft.demonstrations)
        demonstrations = encode_demonstrations(prompts, self._codec, several_turns=self._spec.rollout.tools is not None)
        probe = self._encoded(inputs.probe)
        loss = 0.0
        accuracy = 0.0
        scorer = RewardScorer(self._spec.rewards, self._run_folder)
        with closing(Toolbox(self._spec.rollout.tools, self._run_folder)) as toolbox, closing(reward_process()):
            for step in range(1, self._sft.max_steps + 1):
                loss = self._step(demonstrations, step)
                if step % self._sft.probe_every == 0 or step == self._sft.max_steps:
                    responses = self._answers(probe, toolbox)
                    accuracy = self._accuracy(probe, responses, scorer)
                    if accuracy >= self._sft.stop_accuracy:
                        break
        return SftResult(step, loss, accuracy)

    def _step(self, demonstrations: Demonstrations, step: int) -> float:
        """Takes one optimizer step on the mean loss over a batch's answer tokens; returns that loss."""
        count = len(demonstrations.prompt_offsets) - 1
        draws = [stable_seed("warm_up", self._spec.seed, step, row) % count for row in range(self._sft.batch_size)]
        rows = np.array(draws, dtype=np.int64)
        return self._supervised.take(demonstrations, rows, sft_learning_rate(self._sft, step))

    def _encoded(self, probe: Sequence[Prompt]) -> list[tuple[Prompt, Int32]]:
        """Returns this rank's part of the probe tasks, with their tokens."""
        mine = probe[self._collective.rank :: self._collective.ranks] if self._collective.speaks else ()
        return [(prompt, encode_question(prompt, self._codec)) for prompt in mine]

    def _answers(self, probe: Sequence[tuple[Prompt, Int32]], toolbox: Toolbox) -> list[DialogueResponse]:
        """Returns greedy responses to this rank's probe tasks."""
        model = self._probe_model()
        if not probe:
            return []
        runner = open_runner(model, self._reader)

        def generate(dialogue: Dialogue) -> GenerateResult:
            request = greedy_request(dialogue, self._codec.stop_tokens, version=0)
            return decode(runner, request)

        tokens = [tokens for _, tokens in probe]
        media = media_of([prompt for prompt, _ in probe])
        return hold(Dialogue(self._spec.rollout, self._codec, tokens, media), generate, toolbox)

    def _accuracy(
        self, probe: Sequence[tuple[Prompt, Int32]], responses: Sequence[DialogueResponse], scorer: RewardScorer
    ) -> float:
        """Returns the fraction of all ranks' answers with a score that are correct; 0 if none has one."""
        pairs = enumerate(zip(probe, responses, strict=True))
        scored = [Scored(prompt, response.completion, group) for group, ((prompt, _), response) in pairs]
        scores = [score for score in scorer.score(scored) if not score.missing]
        counts = torch.tensor([sum(score.correct for score in scores), len(scores)], dtype=torch.float64)
        correct, total = self._collective.sum(counts).tolist()
        return float(correct / total) if total else 0.0
