"""Checks that the policy can express right answers: that reference answers still score after the tokenizer.

A tokenizer that drops a distinction, such as case, makes a task impossible to learn, and only a flat reward
would show it. Consumes the first training prompts of every source; raises `DataError`, or logs a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from yatt_core.datasets.sources import source_place
from yatt_core.errors import DataError
from yatt_core.problems import Problems
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.prompts.tool_calls import split_turns
from yatt_core.rewards.scoring import RewardScorer, SampleScore, Scored
from yatt_core.rewards.written_answers import ways_to_write
from yatt_core.spec.rewards.scheme import FunctionPart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.data import ReasoningGymSource
from yatt_core.spec.sections.model import ModelFromConfig

log = logging.getLogger(__name__)
ROWS_PER_SOURCE = 64
ROWS_FOR_ONE_RIGHT = 8
LEAST_SHARE = 0.5
"""Fraction of a source's right answers that must still be right after the tokenizer."""


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """A reference answer that scores right as text, but not as the policy can write it."""

    prompt: Prompt
    written: str


def check_answers(
    spec: RunSpec, run_folder: Path, codec: TextCodec, train: PromptFile, train_sizes: Sequence[int]
) -> None:
    """Scores reference answers that the tokenizer changes, as text and as the policy can write them.

    run_folder: folder of the run, which has its own copies of reward functions' files.
    train: the training prompts, source after source.

    Raises `DataError` for sources of which too few right answers remain right.
    """
    decisive = next(part for part in spec.rewards.parts if part.name == spec.rewards.accuracy_name)
    if spec.virtual or not isinstance(decisive, FunctionPart):
        return
    scorer = RewardScorer(spec.rewards, run_folder)
    problems = Problems()
    start = 0
    for source, size in enumerate(train_sizes):
        prompts = [train[row] for row in range(start, start + min(size, ROWS_PER_SOURCE))]
        lost = list(lost_answers(codec, scorer, prompts))
        answered = [prompt for prompt in prompts if prompt.answer is not None][:ROWS_FOR_ONE_RIGHT]
        generated = isinstance(spec.data.sources[source], ReasoningGymSource)
        if (answered or generated) and not any(_can_be_right(scorer, prompt) for prompt in answered):
            log.warning(
                "%s: no reference answer of its first rows scores as right, so nothing shows that a response can",
                source_place(spec.data, source),
            )
        if lost:
            with problems.noting():
                _report(spec, source, lost, sum(prompt.answer is not None for prompt in prompts))
        start += size
    problems.raise_any()


def lost_answers(codec: TextCodec, scorer: RewardScorer, prompts: Sequence[Prompt]) -> Iterator[LostAnswer]:
    """Yields the reference answers that are right, and wrong after encoding and decoding."""
    for prompt in prompts:
        if prompt.answer is None:
            continue
        written = codec.decode(codec.encode_answer(prompt.answer))
        if written == prompt.answer:
            continue
        if _is_right(scorer, prompt, prompt.answer) and not _measure(scorer, prompt, written).correct:
            yield LostAnswer(prompt, written)


def _can_be_right(scorer: RewardScorer, prompt: Prompt) -> bool:
    """Returns True if the reference answer scores as right in one of the forms in which responses give it."""
    return any(_is_right(scorer, prompt, text) for text in ways_to_write(prompt.answer or ""))


def _is_right(scorer: RewardScorer, prompt: Prompt, text: str) -> bool:
    """Returns True if a text scores as right; False also for a function that fails on it."""
    try:
        return _measure(scorer, prompt, text).correct
    except DataError:  # reported where responses are scored, with the remedy
        return False


def _measure(scorer: RewardScorer, prompt: Prompt, text: str) -> SampleScore:
    """Scores a reference answer as a response; its number of tokens is estimated by its words."""
    spoken = split_turns(text)[0]
    return scorer.score([Scored(prompt, Completion.of_turns(text, spoken, len(text.split())))])[0]


def _report(spec: RunSpec, source: int, lost: Sequence[LostAnswer], checked: int) -> None:
    rows = "; ".join(
        f"{one.prompt.prompt_id}: {one.prompt.answer!r:.60} becomes {one.written!r:.60}" for one in lost[:3]
    )
    lowercase = isinstance(spec.model, ModelFromConfig) and spec.model.tokenizer.lowercase
    advice = "set model.tokenizer.lowercase: false" if lowercase else "use a model whose tokenizer keeps them"
    said = (
        f"{source_place(spec.data, source)}: {len(lost)} of {checked} reference answers are right as text, but not as the "
        f"model's tokenizer can write them ({rows}); {advice}"
    )
    if len(lost) > (1.0 - LEAST_SHARE) * checked:
        raise DataError(said)
    log.warning("%s", said)
