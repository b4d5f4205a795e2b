"""The stream of prompts: a pure function, divisible anywhere, each epoch a permutation, sources in their shares."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inputs.example_specs import SPELL, SUM, run_spec
from tests.matrix import examples
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.stream import Cursor, apportion, draw, epoch_order, locate

MIXTURE = run_spec({**SPELL, "weight": 3.0}, {**SUM, "weight": 1.0}).data


@given(seed=st.integers(0, 2**70), counts=st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=examples(60), deadline=None)
def test_split_draws_equal_one_draw(seed, counts):
    start = Cursor.start(MIXTURE)
    whole, end = draw(MIXTURE, seed, start, sum(counts))
    pieces = []
    cursor = start
    for count in counts:
        drawn, cursor = draw(MIXTURE, seed, Cursor.from_json(json.loads(json.dumps(cursor.to_json()))), count)
        pieces += drawn
    assert tuple(pieces) == whole
    assert cursor == end
    assert [reference.ordinal for reference in whole] == list(range(sum(counts)))
    for source in range(2):
        positions = [reference.position for reference in whole if reference.source == source]
        assert positions == list(range(end.drawn[source]))


@given(seed=st.integers(0, 2**70), source=st.integers(0, 5), epoch=st.integers(0, 10**6), size=st.integers(1, 300))
@settings(max_examples=examples(60), deadline=None)
def test_every_epoch_is_a_permutation(seed, source, epoch, size):
    assert sorted(epoch_order(seed, source, epoch, size)) == list(range(size))


def test_orders_differ_by_seed_source_and_epoch():
    orders = [tuple(epoch_order(*key, 50)) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(orders)) == 4
    assert locate(103, 50) == (2, 3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sources_are_drawn_in_their_shares(seed):
    references, _ = draw(MIXTURE, seed, Cursor.start(MIXTURE), 8000)
    share = np.mean([reference.source == 0 for reference in references])
    assert share == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 8000) ** 0.5)


def test_the_stream_is_the_same_in_another_process():
    references, _ = draw(MIXTURE, 5, Cursor.start(MIXTURE), 30)
    script = (
        "from tests.prompts.test_stream import MIXTURE, draw, Cursor, epoch_order;"
        "print([r.source for r in draw(MIXTURE, 5, Cursor.start(MIXTURE), 30)[0]], list(map(int, epoch_order(5, 0, "
        "3, 9))))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == f"{[r.source for r in references]} {list(map(int, epoch_order(5, 0, 3, 9)))}"


def test_the_order_is_pinned():
    """A change to these numbers changes every run: older runs can then no longer be resumed exactly."""
    assert epoch_order(0, 0, 0, 10).tolist() == [9, 5, 6, 8, 1, 3, 0, 7, 4, 2]
    assert [r.source for r in draw(MIXTURE, 0, Cursor.start(MIXTURE), 12)[0]] == [1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0]


def test_a_cursor_of_another_mixture_is_refused():
    with pytest.raises(ConfigurationError, match=r"data\.sources: .*1 sources.* 2;"):
        draw(MIXTURE, 0, Cursor(4, (4,)), 1)


@given(total=st.integers(0, 1000), weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_shares_are_whole_and_complete(total, weights):
    shares = apportion(total, weights)
    assert sum(shares) == total
    assert all(abs(share - total * weight / sum(weights)) < 1 for share, weight in zip(shares, weights, strict=True))


@given(
    seed=st.integers(0, 2**70),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=8),
)
@settings(max_examples=examples(60), deadline=None)
def test_epochs_are_complete_wherever_the_draws_are_cut(seed, sizes, counts):
    """However the draws are split, each source yields every row once per epoch, in that epoch's order."""
    cursor = Cursor.start(MIXTURE)
    rows = ([], [])
    for count in counts:
        references, cursor = draw(MIXTURE, seed, Cursor.from_json(cursor.to_json()), count)
        for reference in references:
            epoch, place = locate(reference.position, sizes[reference.source])
            rows[reference.source].append(
                int(epoch_order(seed, reference.source, epoch, sizes[reference.source])[place])
            )
    for source, size in enumerate(sizes):
        assert len(rows[source]) == cursor.drawn[source]
        for start in range(0, len(rows[source]), size):
            walked = rows[source][start : start + size]
            assert walked == epoch_order(seed, source, start // size, size)[: len(walked)].tolist()
            assert len(walked) < size or sorted(walked) == list(range(size))
