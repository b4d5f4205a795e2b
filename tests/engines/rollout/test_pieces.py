"""Pieces of a decode batch: buffered, joined and cut without changing a bit; every engine streams what it generates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.rollout.cases import MAX_NEW, prompts_of, request_of, rows_of
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.protocols.generation import GeneratePiece, GenerateResult, support_fields
from yatt_core.protocols.pieces import cut_piece, hold_back, join_pieces
from yatt_core.wire.support import Support

SAMPLES = 3


def answer(prompts: int) -> GenerateResult:
    rng = np.random.default_rng(prompts)
    lengths = rng.integers(1, 6, prompts * SAMPLES).astype(np.int32)
    total = int(lengths.sum())
    tokens = np.arange(total, dtype=np.int32)
    finish = (lengths > 3).astype(np.int8)
    sizes = rng.integers(1, 4, total).astype(np.int32)
    supports = support_fields(Support(np.arange(sizes.sum(), dtype=np.int32), sizes))
    return GenerateResult(tokens, -tokens.astype(np.float32), lengths, finish, 2, 1.0, **supports)


@given(st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=4))
def test_cutting_and_joining_gives_the_whole(order, cuts):
    whole = answer(2)
    parts = np.split(np.array(order), np.unique(cuts))
    pieces = [cut_piece(whole, np.sort(part), 0.5) for part in parts]
    joined = join_pieces(pieces)
    assert joined.rows == tuple(range(6))
    assert rows_of(joined.result) == rows_of(whole)
    assert joined.result.support_tokens.tolist() == whole.support_tokens.tolist()
    assert joined.result.support_sizes.tolist() == whole.support_sizes.tolist()
    assert joined.result.seconds == pytest.approx(0.5 * len(pieces))
    assert joined.result.weight_version == 2


def test_a_joined_piece_shares_no_memory_with_its_parts():
    piece = cut_piece(answer(2), np.arange(2), 0.0)
    assert not np.shares_memory(join_pieces([piece]).result.tokens, piece.result.tokens)


def test_pieces_are_held_back_until_some_time_has_passed_and_never_lost():
    whole = answer(2)
    clock = [0.0]

    def stream():
        for at, rows in ((0.01, [4]), (0.05, [0]), (0.12, []), (0.13, [1]), (0.5, []), (0.9, [2, 3]), (0.91, [5])):
            clock[0] = at
            yield cut_piece(whole, np.array(rows), 0.1) if rows else None

    came = [(clock[0], piece.rows) for piece in hold_back(stream(), 0.1, lambda: clock[0])]
    assert came == [(0.12, (0, 4)), (0.5, (1,)), (0.9, (2, 3)), (0.91, (5,))]


def test_a_stream_without_rows_gives_no_pieces():
    assert list(hold_back(iter([None, None]), 0.0)) == []


def streamed(case, request) -> list[GeneratePiece]:
    return [piece for piece in case.engine.stream(request) if piece is not None]


def test_an_engine_streams_the_bits_that_it_generates(case):
    request = request_of(prompts_of([5, 40, 9, 3, 12, 7]), samples=4, max_new_tokens=MAX_NEW)
    pieces = streamed(case, request)
    assert sorted(row for piece in pieces for row in piece.rows) == list(range(24))
    assert rows_of(join_pieces(pieces).result) == rows_of(case.engine.generate(request))


def test_finished_responses_come_first(case):
    request = request_of(prompts_of([5, 40, 9, 3, 12, 7, 8, 9]), samples=1, max_new_tokens=MAX_NEW)
    pieces = streamed(case, request)
    assert len(pieces) > 2, "in several pieces"
    longest = [int(piece.result.lengths.max()) for piece in pieces]
    assert longest == sorted(longest), "in the order in which the decode steps finish them"


def test_a_step_that_finishes_nothing_yields_to_the_caller(torch_engine):
    request = request_of(prompts_of([5]), samples=1, stop_tokens=(), max_new_tokens=6)
    assert [piece is None for piece in torch_engine.engine.stream(request)] == [True] * 5 + [False]


def test_an_abandoned_stream_leaves_the_engine_unchanged(case):
    request = request_of(prompts_of([5, 40, 9]), samples=4, max_new_tokens=MAX_NEW)
    expected = rows_of(case.engine.generate(request))
    given_up = case.engine.stream(request)
    next(given_up)
    given_up.close()
    assert rows_of(case.engine.generate(request)) == expected


def test_an_empty_batch_has_no_pieces(case):
    assert streamed(case, request_of([], seeds=np.zeros((0, 4), np.uint64))) == []


def test_a_stream_refuses_what_generate_refuses(case):
    with pytest.raises(InfrastructureError, match=r"version 0.*version 3"):
        streamed(case, request_of(prompts_of([4]), weight_version=3))
    with pytest.raises(DataError, match="prompt 1 "):
        streamed(case, request_of(prompts_of([4, 0])))
