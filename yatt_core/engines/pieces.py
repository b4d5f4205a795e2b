"""Pieces of a decode batch: cut from an answer, joined to one, and held back so that none is too small to travel.

Consumes and produces `GeneratePiece`s; what they hold is the same bits however a batch is cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from yatt_core.data.columns import Int64, offsets_of, ragged_positions
from yatt_core.engines.protocol import GeneratePiece, GenerateResult

HOLD_SECONDS = 0.1
"""A piece costs Ray about a millisecond on either side; ten in a second cost little and come soon enough."""


def cut_piece(whole: GenerateResult, prompts: Int64, samples: int, seconds: float) -> GeneratePiece:
    """The responses to some prompts, `samples` to each. prompts: numbers within the request, ascending."""
    return GeneratePiece(tuple(prompts.tolist()), replace(_take(whole, prompts, samples), seconds=seconds))


def join_pieces(pieces: Sequence[GeneratePiece]) -> GeneratePiece:
    """One piece of all, in the order of the request; of one or more pieces of one request. Copies."""
    prompts = np.concatenate([np.array(piece.prompts, dtype=np.int64) for piece in pieces])
    results = [piece.result for piece in pieces]
    whole = GenerateResult(
        tokens=np.concatenate([result.tokens for result in results]),
        log_probs=np.concatenate([result.log_probs for result in results]),
        lengths=np.concatenate([result.lengths for result in results]),
        finish=np.concatenate([result.finish for result in results]),
        weight_version=results[0].weight_version,
        seconds=sum(result.seconds for result in results),
    )
    order = np.argsort(prompts, kind="stable")
    samples = len(whole.lengths) // max(len(prompts), 1)
    return GeneratePiece(tuple(prompts[order].tolist()), _take(whole, order, samples))


def hold_back(
    pieces: Iterable[GeneratePiece | None],
    seconds: float = HOLD_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[GeneratePiece]:
    """The pieces of an engine's stream, joined so that they come `seconds` apart; whatever is left comes at the end."""
    held: list[GeneratePiece] = []
    passed_on = now()
    for piece in pieces:
        if piece is not None:
            held.append(piece)
        if held and now() - passed_on >= seconds:
            yield join_pieces(held)
            held, passed_on = [], now()
    if held:
        yield join_pieces(held)


def _take(whole: GenerateResult, prompts: Int64, samples: int) -> GenerateResult:
    rows = (prompts[:, None] * samples + np.arange(samples)).reshape(-1)
    positions = ragged_positions(offsets_of(whole.lengths), rows)
    return replace(
        whole,
        tokens=whole.tokens[positions],
        log_probs=whole.log_probs[positions],
        lengths=whole.lengths[rows],
        finish=whole.finish[rows],
    )
