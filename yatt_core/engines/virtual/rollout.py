"""A rollout engine without a model: seeded synthetic responses after configured durations.

Consumes decode batches and weights; produces responses that are a function of (run seed, digest of the
weights, prompt, sample seed) alone, so that a batch answered with the wrong weights shows in the experience
digest.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from yatt_core.digests import weights_digest
from yatt_core.engines.noise import mix, uniforms
from yatt_core.engines.rollout.incoming import AssemblingTaker
from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.engines.virtual.lengths import log_normal_lengths
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.protocols.generation import (
    FINISHED_LENGTH,
    FINISHED_STOP,
    GeneratePiece,
    GenerateRequest,
    GenerateResult,
    Int32,
    UInt64,
)
from yatt_core.protocols.pieces import cut_piece
from yatt_core.spec.sections.rollout import VirtualRollout
from yatt_core.wire.parts import Rectangle

# Each token uses two numbers of a row's stream; the first two numbers determine the length.
_LENGTH_NUMBERS = 2
LOG_PROB_RANGE = 4.0


class VirtualRolloutEngine(AssemblingTaker):
    """One engine, which accepts any weights: only their digest matters.

    Its log-probabilities are uniform in (-4, 0]; temperature and top-p do not change a response.
    """

    def __init__(self, spec: VirtualRollout, seed: int, clock: ScaledClock | None = None) -> None:
        self._spec = spec
        self._seed = seed
        self._clock = clock or ScaledClock(spec.clock_factor)
        self._weights = ""

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """The engine's capabilities, by name."""
        return {"batch_invariant": True, "sleep": True, "in_flight_update": False}

    def sleep(self) -> None:
        """Does nothing: there is no memory to release."""

    def wake(self) -> None:
        """Does nothing: it never sleeps."""

    def rectangle_digests(self, rectangles: Sequence[Rectangle]) -> None:
        """Returns None: it keeps no weights, only their digest."""

    def _complete(self, version: int) -> None:
        self._weights = weights_digest(self._whole)
        self._whole = {}

    def take_digest(self, digest: str) -> None:
        """Ends an update in place of all buckets. digest: `weights_digest` of the weights."""
        incoming = self._claimed()
        self._weights = digest
        self._version = incoming.version

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answers every prompt as often as the request asks, and takes as long as its decode steps would.

        Raises `InfrastructureError` if asked for a version other than its own, `DataError` for an empty
        prompt.
        """
        started = time.perf_counter()
        answer = self.answer(request)
        self._clock.spend(self._duration(answer.lengths, request.max_new_tokens))
        return replace(answer, seconds=time.perf_counter() - started)

    def stream(self, request: GenerateRequest) -> Iterator[GeneratePiece]:
        """Yields the responses of `generate` one by one as the decode steps finish them. Raises as `generate` does."""
        started = time.perf_counter()
        answer = self.answer(request)
        ends = answer.lengths
        spent = 0.0
        for step in np.unique(ends).tolist():
            until = self._duration(answer.lengths, step)
            self._clock.spend(until - spent)
            finished = time.perf_counter()
            spent = until
            yield cut_piece(answer, np.flatnonzero(ends == step), finished - started)
            started = finished

    def answer(self, request: GenerateRequest) -> GenerateResult:
        """Returns the responses without spending time. Raises as `generate` does."""
        if request.weight_version != self._version or self._version < 0:
            raise InfrastructureError(
                f"the virtual rollout engine holds weights of version {self._version}, but the request needs version"
                f" {request.weight_version}; sync it first"
            )
        for row, prompt in enumerate(request.prompts):
            if len(prompt) == 0:
                raise DataError(f"prompt {row} of the decode batch has no tokens")
        noise = uniforms(self._keys(request), _LENGTH_NUMBERS + 2 * request.max_new_tokens)
        sizes = noise if request.drawn is None else uniforms(self._whole_keys(request, request.drawn), _LENGTH_NUMBERS)
        lengths, finish = self._lengths(sizes[:, :_LENGTH_NUMBERS], request)
        tokens, log_probs = self._tokens(noise[:, _LENGTH_NUMBERS:], lengths, finish, request)
        return GenerateResult(
            tokens=tokens,
            log_probs=log_probs,
            lengths=lengths,
            finish=finish,
            weight_version=request.weight_version,
            seconds=0.0,
        )

    def _keys(self, request: GenerateRequest) -> UInt64:
        """Returns the seed of each row's stream, [P * S]."""
        context = hashlib.sha256(f"{self._seed}|{self._weights}|".encode())
        prompts = np.empty(len(request.prompts), np.uint64)
        for row, prompt in enumerate(request.prompts):
            digest = context.copy()
            digest.update(np.ascontiguousarray(prompt, dtype="<i4").data)
            prompts[row] = int.from_bytes(digest.digest()[:8], "little")
        seeds = np.zeros_like(request.seeds) if request.greedy else request.seeds
        return mix(prompts[:, None] ^ mix(seeds)).reshape(-1)

    def _whole_keys(self, request: GenerateRequest, drawn: Int32) -> UInt64:
        """Returns the seeds of the whole lengths of responses that are drawn in slices, [P * S]: whatever the weights.

        A response has the same length in each of its slices. drawn: as in the request.
        """
        questions = np.empty(len(request.prompts), np.uint64)
        for row, (prompt, tokens) in enumerate(zip(request.prompts, drawn.tolist(), strict=True)):
            question = np.ascontiguousarray(prompt[: len(prompt) - tokens], dtype="<i4")
            digest = hashlib.sha256(f"{self._seed}|".encode() + question.tobytes())
            questions[row] = int.from_bytes(digest.digest()[:8], "little")
        return mix(questions[:, None] ^ mix(request.seeds)).reshape(-1)

    def _lengths(self, noise: npt.NDArray[np.float64], request: GenerateRequest) -> tuple[Int32, npt.NDArray[np.int8]]:
        """Draws log-normal lengths, cut at the prompts' limits; without a stop token, all have the limit's length."""
        wanted = log_normal_lengths(noise, self._spec.median_tokens, self._spec.sigma)
        if request.drawn is not None:
            wanted = wanted - np.repeat(request.drawn, request.seeds.shape[1])
        limits = np.repeat(request.prompt_limits, request.seeds.shape[1])
        cut = (wanted > limits) | (not request.stop_tokens)
        lengths = np.where(cut, limits, wanted).astype(np.int32)
        return lengths, np.where(cut, FINISHED_LENGTH, FINISHED_STOP).astype(np.int8)

    def _tokens(
        self,
        noise: npt.NDArray[np.float64],
        lengths: Int32,
        finish: npt.NDArray[np.int8],
        request: GenerateRequest,
    ) -> tuple[Int32, npt.NDArray[np.float32]]:
        """Returns concatenated tokens and log-probabilities; a stop token occurs only at the end of a response."""
        words = np.setdiff1d(np.arange(self._spec.vocabulary, dtype=np.int32), request.stop_tokens)
        tokens = words[(noise[:, 0::2] * len(words)).astype(np.int64)].astype(np.int32)
        log_probs = (-LOG_PROB_RANGE * noise[:, 1::2]).astype(np.float32)
        stopped = np.flatnonzero(finish == FINISHED_STOP)
        if len(stopped):
            tokens[stopped, lengths[stopped] - 1] = request.stop_tokens[0]
        written = np.arange(request.max_new_tokens) < lengths[:, None]
        return tokens[written], log_probs[written]

    def _duration(self, lengths: Int32, steps: int) -> float:
        """Returns the virtual seconds of the first `steps` decode steps, or of all if there are fewer.

        Finished sequences leave the batch.
        """
        if not len(lengths):
            return 0.0
        taken = np.minimum(lengths, steps)
        return self._spec.base_seconds * int(taken.max()) + self._spec.seconds_per_sequence * int(taken.sum())
