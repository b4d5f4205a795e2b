"""Trains a small judge of whether an answer is correct, from prompts with reference answers.

Consumes the part of the spec, training prompts, probe tasks and a folder with the untrained model; overwrites
its weights with the trained ones. Training uses one process, one thread and one rank, so that the weights' bytes are a
function of spec, seed and prompts. Half of the answers are correct; each wrong answer is generated from its own
seed, so that none occurs twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.judge.corruption import Corruption
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.runners import open_runner
from yatt_core.engines.train.model.forward import PolicyForward
from yatt_core.engines.train.model.optimizer import FlatAdamW
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.supervised import (
    Demonstrations,
    SupervisedStep,
    demonstrations_of,
    sft_learning_rate,
)
from yatt_core.errors import DataError
from yatt_core.judges.codec import JudgeCodec, open_judge_codec
from yatt_core.judges.parsing import parser_of
from yatt_core.keys import stable_seed
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.stream import Prompt
from yatt_core.prompts.tool_calls import last_turn
from yatt_core.protocols.generation import GenerateRequest, Int32
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.rewards.parsing import YesNo
from yatt_core.spec.sections.model import SftSpec
from yatt_core.spec.sections.trainer import AdamWSpec

MICRO_BATCH_TOKENS = 2048
"""Tokens of a forward pass; few, so that short questions are not padded to the length of long ones."""
PROBE_WRONG = 3
"""Number of wrong answers per probe task, in addition to the correct one."""
TOKENS_AFTER_RESPONSE = 1
"""Number of tokens of a question after the response: the separator with which the chat template asks for an answer."""

Report = Callable[[int, float], None]
"""Receives the number of steps taken and the last measured accuracy, after every step."""


@dataclass(frozen=True, slots=True)
class JudgeFacts:
    """The outcome of the training.

    steps: number of steps taken.
    accuracy: fraction of held-out pairs (probe tasks with a correct or a wrong answer) that the judge's most
    likely answer classifies correctly; correct and wrong answers have equal weight.
    false_yes: fraction of wrong answers that it accepts.
    false_no: fraction of correct answers that it rejects.
    pairs: number of held-out pairs.
    """

    steps: int
    accuracy: float
    false_yes: float
    false_no: float
    pairs: int


def train_judge(
    part: GenerativePart,
    training: SftSpec,
    seed: int,
    prompts: Sequence[Prompt],
    probe: Sequence[Prompt],
    folder: Path,
    report: Report,
) -> JudgeFacts:
    """Trains the model in the folder and overwrites it.

    part: its template ends with the response.
    seed: seed of the judge.
    prompts: prompts to learn from.
    probe: tasks that determine when training stops.

    Raises `DataError` for prompts without reference answers, and for a question that does not fit the model.
    """
    with _one_thread():
        model = load_causal_lm(str(folder), "float32").train()
        learner = _Learner(part, training, seed, prompts=prompts, probe=probe, model=model, folder=folder)
        facts = learner.run(report)
        network: Any = model
        network.save_pretrained(folder)
    return facts


class _Learner:
    """The training of one judge."""

    def __init__(
        self,
        part: GenerativePart,
        training: SftSpec,
        seed: int,
        prompts: Sequence[Prompt],
        probe: Sequence[Prompt],
        model: torch.nn.Module,
        folder: Path,
    ) -> None:
        assert isinstance(part.parse, YesNo)
        self._part = part
        self._training = training
        self._seed = seed
        self._model = model
        self._codec: JudgeCodec = open_judge_codec(str(folder), part.template, part.max_new_tokens)
        tokenizer = load_tokenizer(folder)
        self._yes, self._no = (_tokens(tokenizer, words[0]) for words in (part.parse.yes, part.parse.no))
        self._parse = parser_of(part.parse)
        self._prompts = [(prompt, _reference(prompt)) for prompt in prompts]
        self._corruption = Corruption([answer for _, answer in self._prompts], (prompt.text for prompt in prompts))
        self._pairs = list(self._probe_pairs(probe))
        optimizer = FlatAdamW(model, AdamWSpec())
        forward = PolicyForward(model, 1.0, "float32")
        self._step = SupervisedStep(forward, optimizer, Collective(), max(MICRO_BATCH_TOKENS, self._codec.longest))

    def run(self, report: Report) -> JudgeFacts:
        """Trains until the accuracy on the held-out pairs is high enough, or all steps are taken."""
        training = self._training
        facts = JudgeFacts(steps=0, accuracy=0.0, false_yes=0.0, false_no=0.0, pairs=len(self._pairs))
        rows = np.arange(training.batch_size, dtype=np.int64)
        for step in range(1, training.max_steps + 1):
            self._step.take(self._batch(step), rows, sft_learning_rate(training, step))
            if step % training.probe_every == 0 or step == training.max_steps:
                facts = self._measured(step)
            report(step, facts.accuracy)
            if facts.accuracy >= training.stop_accuracy:
                break
        return facts

    def _batch(self, step: int) -> Demonstrations:
        """Returns correct and wrong answers alternately, to prompts drawn by seed."""
        items = []
        rights = []
        for row in range(self._training.batch_size):
            draw = stable_seed("judge_batch", self._seed, step, row)
            prompt, answer = self._prompts[draw % len(self._prompts)]
            rights.append(row % 2 == 0)
            items.append(
                _item(row, prompt, answer, answer if rights[-1] else self._corruption.wrong(draw, answer, prompt.text))
            )
        starts = self._answer_starts(items)
        begins = []
        learned = []
        for question, start, right in zip(self._questions(items), starts, rights, strict=True):
            begin = start if right else len(question)
            begins.append(question[:begin])
            learned.append(np.concatenate([question[begin:], self._yes if right else self._no]))
        return demonstrations_of(begins, learned, [np.ones(len(tokens), np.bool_) for tokens in learned])

    def _answer_starts(self, items: Sequence[JudgeItem]) -> list[int]:
        """Returns where each question's response begins; if it is correct, the judge learns from there on.

        A judge that can write the correct answer itself recognises what differs from it.
        """
        blank = [replace(item, response="") for item in items]
        return [len(question) - TOKENS_AFTER_RESPONSE for question in self._questions(blank)]

    def _probe_pairs(self, probe: Sequence[Prompt]) -> Iterator[tuple[JudgeItem, bool]]:
        """Yields held-out items, and for each whether its response is correct."""
        for place, prompt in enumerate(probe):
            answer = _reference(prompt)
            yield _item(place, prompt, answer, answer), True
            for number in range(PROBE_WRONG):
                wrong = self._corruption.wrong(
                    stable_seed("judge_probe", self._seed, place, number), answer, prompt.text
                )
                yield _item(place, prompt, answer, wrong), False

    def _measured(self, step: int) -> JudgeFacts:
        """Measures the judge's greedy answers on all held-out pairs.

        An answer that cannot be parsed counts as no, because its score is 0.
        """
        questions = self._questions([item for item, _ in self._pairs])
        request = GenerateRequest(
            prompts=questions,
            seeds=np.zeros((len(questions), 1), np.uint64),
            max_new_tokens=self._part.max_new_tokens,
            stop_tokens=self._codec.stop_tokens,
            weight_version=0,
            greedy=True,
        )
        result = decode(open_runner(self._model), request)
        answers = np.split(result.tokens, np.cumsum(result.lengths)[:-1])
        said = np.array([self._parse(self._codec.decode(answer)) == 1.0 for answer in answers])
        right = np.array([is_right for _, is_right in self._pairs])
        false_yes = float(said[~right].mean())
        false_no = float((~said[right]).mean())
        return JudgeFacts(
            steps=step,
            accuracy=1.0 - (false_yes + false_no) / 2,
            false_yes=false_yes,
            false_no=false_no,
            pairs=len(right),
        )

    def _questions(self, items: Sequence[JudgeItem]) -> list[Int32]:
        questions = []
        for question in self._codec.encode(items):
            if isinstance(question, str):
                raise DataError(f"rewards.parts {self._part.name!r}: {question}; shorten the prompts or the template")
            questions.append(question)
        return questions


def _tokens(tokenizer: Any, word: str) -> Int32:
    """Returns the tokens of an answer of the judge, with the one that ends it: [length]."""
    return np.array([*tokenizer(word, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id], np.int32)


def _item(number: int, prompt: Prompt, answer: str, response: str) -> JudgeItem:
    return JudgeItem(number, prompt.text, response=response, answer=answer, seeds=(0,))


def _reference(prompt: Prompt) -> str:
    """Returns the correct answer. Raises `DataError` for a prompt without one."""
    if prompt.answer is None:
        raise DataError(f"prompt {prompt.prompt_id} has no reference answer for the judge to learn from")
    return last_turn(prompt.answer).strip()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limits torch to one thread, because the order of additions, and so every bit, depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
