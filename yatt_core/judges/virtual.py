"""A judge without a model: seeded synthetic judgements generated at configured speeds.

Consumes items. Produces verdicts whose scores and lengths are functions of (run seed, prompt, response, the
judgement's seed) only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from yatt_core.engines.noise import uniforms
from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.engines.virtual.lengths import log_normal_lengths
from yatt_core.judges.template import filled_text
from yatt_core.protocols.judges import JudgeItem, Judgement, JudgeRequest, Verdict
from yatt_core.spec.rewards.judges import GenerativePart, VirtualJudge

_NUMBERS = 3
"""Random numbers of a judgement: two for the length, one for the score; a critique has one more for each step."""
WRONG_FRACTION = 0.4
"""Probability with which a critique names a step."""


class VirtualJudgeEngine:
    """One engine. Prompt tokens are the bytes of the filled-in template."""

    def __init__(self, part: GenerativePart, engine: VirtualJudge, clock: ScaledClock | None = None) -> None:
        self._part = part
        self._engine = engine
        self._clock = clock or ScaledClock(engine.clock_factor)

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Capabilities by name."""
        return {"deterministic": True, "batch_invariant": True}

    def sleep(self) -> None:
        """Does nothing: there is no memory to release."""

    def wake(self) -> None:
        """Does nothing: it never sleeps."""

    def judge(self, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Yields each verdict after the decode step that finishes the item's last judgement.

        Items are judged in batches as large as the engine allows.
        """
        size = max(1, self._engine.max_num_seqs // self._part.judgements)
        for start in range(0, len(request.items), size):
            yield from self._judge_at_once(request.items[start : start + size])

    def _judge_at_once(self, items: tuple[JudgeItem, ...]) -> Iterator[tuple[Verdict, ...]]:
        verdicts = [self.verdict(item) for item in items]
        self._clock.spend(self._engine.seconds_per_prompt_token * sum(v.judgements[0].prompt_tokens for v in verdicts))
        lengths = np.array([judgement.tokens for verdict in verdicts for judgement in verdict.judgements])
        ends = [max(judgement.tokens for judgement in verdict.judgements) for verdict in verdicts]
        spent = 0.0
        for step in sorted(set(ends)):
            taken = np.minimum(lengths, step)
            until = self._engine.base_seconds * step + self._engine.seconds_per_sequence * int(taken.sum())
            self._clock.spend(until - spent)
            spent = until
            yield tuple(verdict for verdict, end in zip(verdicts, ends, strict=True) if end == step)

    def verdict(self, item: JudgeItem) -> Verdict:
        """Returns the verdict on an item; the text of a judgement is its score, or a list of wrong steps."""
        digest = hashlib.sha256(f"{item.prompt}\0{item.response}".encode()).digest()
        seeds = np.array(item.seeds, np.uint64) ^ np.frombuffer(digest[:8], "<u8")
        noise = uniforms(seeds, _NUMBERS)
        lengths = log_normal_lengths(noise[:, :2], self._engine.median_tokens, self._engine.sigma)
        tokens = np.minimum(lengths, self._part.max_new_tokens)
        prompt_tokens = len(filled_text(self._part.template, item).encode())
        if item.steps:
            told = [_critique(row) for row in uniforms(seeds, _NUMBERS + len(item.steps))[:, _NUMBERS:]]
        else:
            told = [(f"{score:.1f}", score) for score in (np.floor(noise[:, 2] * 10) / 10).tolist()]
        return Verdict(
            item.number,
            tuple(
                Judgement(answer, score, length, prompt_tokens)
                for (answer, score), length in zip(told, tokens.astype(int).tolist(), strict=True)
            ),
        )


def _critique(noise: npt.NDArray[np.float64]) -> tuple[str, float]:
    """Returns the text of a critique and the number of steps that it names. noise: one number per step."""
    wrong = (np.flatnonzero(noise < WRONG_FRACTION) + 1).tolist()
    return str(wrong), float(len(wrong))
