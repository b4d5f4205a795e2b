"""The loop that answers one decode batch: prefills a prompt once per group, and fills free rows with waiting prompts.

Consumes a runner of a model and a `GenerateRequest`; produces a `GenerateResult`, whole or in pieces. Why a response's bits do
not depend on its batch says `rows`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from yatt_core.engines.rollout.torch.rows import ENTRY_SHARE, DecodingRows, Responses
from yatt_core.engines.rollout.torch.runner import Indices, Room, Runner
from yatt_core.engines.rollout.torch.sizes import rows_for
from yatt_core.errors import DataError
from yatt_core.progress import advanced
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult


def decode(runner: Runner, request: GenerateRequest, max_num_seqs: int | None = None) -> GenerateResult:
    """Answers every prompt of the request with the current weights.

    max_num_seqs: maximum number of responses in progress; the others wait. All responses to one prompt are
        always in progress together, even if there are more.

    Raises `DataError` for an empty prompt and for images that do not match their prompts or cannot be read,
    `NumericError` if the model produces logits that are not finite, `ConfigurationError` if this loop does
    not support the model's attention.
    """
    started = time.perf_counter()
    responses = Responses.empty(request.seeds.size, request.max_new_tokens)
    for _ in _finished(runner, request, responses, max_num_seqs):
        pass
    return responses.result(request, time.perf_counter() - started)


def decode_pieces(
    runner: Runner, request: GenerateRequest, max_num_seqs: int | None = None
) -> Iterator[GeneratePiece | None]:
    """Yields the responses of `decode`, each as soon as it has ended; None after a step in which none ended.

    Raises as `decode` does.
    """
    started = time.perf_counter()
    responses = Responses.empty(request.seeds.size, request.max_new_tokens)
    for rows in _finished(runner, request, responses, max_num_seqs):
        if not len(rows):
            yield None
            continue
        finished = time.perf_counter()
        yield GeneratePiece(tuple(rows.tolist()), responses.take(rows).result(request, finished - started))
        started = finished


def check_prompts(request: GenerateRequest) -> None:
    """Raises `DataError` for an empty prompt."""
    if any(len(prompt) == 0 for prompt in request.prompts):
        raise DataError(f"prompt {[len(p) for p in request.prompts].index(0)} of the decode batch has no tokens")


def longest_of(request: GenerateRequest) -> int:
    """Returns the maximum number of tokens of a prompt with its response."""
    lengths = np.array([len(prompt) for prompt in request.prompts], np.int64)
    return int((lengths + request.prompt_limits).max())


@torch.inference_mode()
def _finished(
    runner: Runner, request: GenerateRequest, responses: Responses, max_num_seqs: int | None
) -> Iterator[Indices]:
    """Fills in the responses; after each step, yields those that ended in it."""
    check_prompts(request)
    if request.seeds.size == 0:
        return
    prompts, samples = request.seeds.shape
    under_way = prompts if max_num_seqs is None else min(prompts, max(1, max_num_seqs // samples))
    room = Room(
        rows=rows_for(under_way * samples, runner.batch_invariant),
        prompts=under_way,
        samples=samples,
        prompt_tokens=max(len(prompt) for prompt in request.prompts),
        new_tokens=request.max_new_tokens,
        longest=longest_of(request),
    )
    runner.check(room.longest)
    rows = DecodingRows(runner, request, responses, room)
    with runner.generating():
        yield from _run(rows, request)


def _run(rows: DecodingRows, request: GenerateRequest) -> Iterator[Indices]:
    """Decodes; after each step, yields the responses that ended in it, if any."""
    prompts, samples = request.seeds.shape
    numbers = np.arange(prompts * samples).reshape(prompts, samples)
    entered = 0
    rows.begin()
    while entered < prompts or rows.alive:
        advanced()
        if count := _entering(rows, prompts - entered, samples):
            members = np.arange(entered, entered + count)
            entered += count
            yield rows.enter(request, members, numbers[members])
        if rows.alive:
            yield rows.advance()


def _entering(rows: DecodingRows, waiting: int, samples: int) -> int:
    """Returns the number of prompts that enter now. waiting: the prompts that have not entered."""
    places = rows.room.prompts
    free = min(places - rows.places, places - -(-rows.alive // samples))
    enough = min(waiting, -(-places // ENTRY_SHARE))
    return min(waiting, free) if free >= enough else 0
