"""Pieces of a decode batch: cut from a result, joined into one, and held back until they are large enough to send.

Consumes and produces `GeneratePiece`s or other pieces; however a result is cut, its contents are bit-identical.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from yatt_core.protocols.generation import GeneratePiece, GenerateResult, Int32, Returned, support_fields
from yatt_core.wire.ragged import Int64, offsets_of, ragged_positions
from yatt_core.wire.support import Support

Piece = TypeVar("Piece")

HOLD_SECONDS = 0.1
"""Minimum seconds between pieces; one costs Ray about a millisecond on either side, so ten per second cost little."""


def cut_piece(whole: GenerateResult, rows: Int64, seconds: float) -> GeneratePiece:
    """Returns some of the responses as a piece.

    rows: the responses' row numbers within the request, ascending.
    """
    return GeneratePiece(tuple(rows.tolist()), replace(_take(whole, rows), seconds=seconds))


def cut_beginnings(whole: GenerateResult, rows: Int64, lengths: Int64) -> GenerateResult:
    """Returns the first tokens of some responses.

    rows: the responses' row numbers.
    lengths: the number of tokens to keep of each of them.
    """
    shifts = offsets_of(whole.lengths)[rows] - offsets_of(lengths)[:-1]
    positions = np.arange(lengths.sum(), dtype=np.int64) + np.repeat(shifts, lengths)
    return replace(_at(whole, positions), lengths=lengths.astype(np.int32), finish=whole.finish[rows])


def join_pieces(pieces: Sequence[GeneratePiece]) -> GeneratePiece:
    """Joins one or more pieces of a request into one, in the order of the request. Copies the arrays."""
    rows = np.concatenate([np.array(piece.rows, dtype=np.int64) for piece in pieces])
    results = [piece.result for piece in pieces]
    whole = GenerateResult(
        tokens=np.concatenate([result.tokens for result in results]),
        log_probs=np.concatenate([result.log_probs for result in results]),
        lengths=np.concatenate([result.lengths for result in results]),
        finish=np.concatenate([result.finish for result in results]),
        weight_version=results[0].weight_version,
        seconds=sum(result.seconds for result in results),
        versions=joined_versions(results),
        **support_fields(joined_support(results)),
    )
    order = np.argsort(rows, kind="stable")
    return GeneratePiece(tuple(rows[order].tolist()), _take(whole, order))


def hold_back(
    pieces: Iterable[GeneratePiece | None],
    seconds: float = HOLD_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[GeneratePiece]:
    """Yields the pieces of an engine's stream, joined into fewer pieces."""
    return joined_in_time(pieces, join_pieces, seconds, now)


def hold_back_finished(
    pieces: Iterable[GeneratePiece | Returned | None],
    seconds: float = HOLD_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[GeneratePiece | Returned]:
    """Yields what `hold_back` does, and at once what the engine returns unfinished, behind all that has finished before."""
    coming = iter(pieces)
    moved: list[Returned] = []

    def until_moved() -> Iterator[GeneratePiece | None]:
        for piece in coming:
            if isinstance(piece, Returned):
                moved.append(piece)
                return
            yield piece

    while True:
        yield from hold_back(until_moved(), seconds, now)
        if not moved:
            return
        yield moved.pop()


def joined_in_time(
    pieces: Iterable[Piece | None],
    join: Callable[[Sequence[Piece]], Piece],
    seconds: float = HOLD_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Piece]:
    """Joins pieces so that they are at least `seconds` apart, and yields the rest at the end.

    pieces: None means that nothing new has finished.
    """
    held: list[Piece] = []
    passed_on = now()
    for piece in pieces:
        if piece is not None:
            held.append(piece)
        if held and now() - passed_on >= seconds:
            yield join(held)
            held = []
            passed_on = now()
    if held:
        yield join(held)


def joined_versions(results: Sequence[GenerateResult]) -> Int32 | None:
    """Returns the weights' versions of all tokens; None if no result records versions per token."""
    if all(result.versions is None for result in results):
        return None
    return np.concatenate([result.token_versions for result in results])


def joined_support(results: Sequence[GenerateResult]) -> Support | None:
    """Returns the supports of all tokens; None if the results do not record them."""
    supports = [support for result in results if (support := result.support) is not None]
    return Support.joined(supports) if supports else None


def _take(whole: GenerateResult, rows: Int64) -> GenerateResult:
    positions = ragged_positions(offsets_of(whole.lengths), rows)
    return replace(_at(whole, positions), lengths=whole.lengths[rows], finish=whole.finish[rows])


def _at(whole: GenerateResult, positions: Int64) -> GenerateResult:
    """Returns a result with the tokens at these positions; the lengths are those of the whole."""
    support = None if whole.support is None else whole.support.at(positions)
    return replace(
        whole,
        tokens=whole.tokens[positions],
        log_probs=whole.log_probs[positions],
        versions=None if whole.versions is None else whole.versions[positions],
        support_tokens=None if support is None else support.tokens,
        support_sizes=None if support is None else support.sizes,
    )
