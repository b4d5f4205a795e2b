"""Parts of tensors: what each of several holders contributes, and the overlap of rectangles."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.wire.parts import DIVIDED_BYTES, Box, TensorPart, contributed, cut_box, whole_box


def replicated(name: str, rows: int, columns: int, ranks: int) -> TensorPart[np.ndarray]:
    values = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    return TensorPart(name, values.shape, (0, 0), values, tuple(range(ranks)))


def test_every_number_of_a_replicated_part_is_contributed_once_and_in_like_amounts() -> None:
    ranks = 3
    large = DIVIDED_BYTES // 4 // 100 + 1
    parts = [replicated("large", large, 100, ranks), *(replicated(f"small{n}", n + 1, 7, ranks) for n in range(20))]
    given = [list(contributed(parts, rank)) for rank in range(ranks)]
    for part in parts:
        own = sorted((p.offsets[0], p.sizes[0]) for mine in given for p in mine if p.name == part.name)
        assert sum(rows for _, rows in own) == part.shape[0]
        assert [start for start, _ in own] == np.cumsum([0, *(rows for _, rows in own)])[:-1].tolist()
    sizes = [sum(p.values.nbytes for p in mine) for mine in given]
    assert max(sizes) - min(sizes) < 2000
    for mine in given:
        for p in mine:
            whole = next(part for part in parts if part.name == p.name).values
            np.testing.assert_array_equal(p.values, whole[p.box.slices((0, 0))])


def test_a_part_with_one_holder_is_contributed_as_it_is() -> None:
    part = TensorPart("own", (8, 2), (4, 0), np.ones((4, 2), np.float32), (1,))
    assert list(contributed([part], 1)) == [part]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 7)), max_size=3), st.integers(1, 60))
def test_a_cut_rectangle_is_whole_again_when_its_pieces_are_joined(sides: list[tuple[int, int]], most: int) -> None:
    box = Box(tuple(start for start, _ in sides), tuple(size for _, size in sides))
    found = list(cut_box(box, most))
    seen = np.zeros((11,) * len(sides), int)
    assert all(np.prod(piece.sizes) <= most for piece in found)
    for piece in found:
        seen[piece.slices((0,) * len(sides))] += 1
    assert seen.sum() == np.prod(box.sizes) and seen.max() == 1 and (seen[box.slices((0,) * len(sides))] == 1).all()
    pile: list[Box] = []
    for piece in found:
        while pile and (larger := pile[-1].joined(piece)) is not None:
            pile.pop()
            piece = larger
        pile.append(piece)
    assert pile == [box]
    assert box.joined(box) is None


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 4), min_size=1, max_size=3))
def test_the_overlap_has_exactly_the_common_indices(dimensions: list[tuple[int, int, int, int]]) -> None:
    one = Box(tuple(d[0] for d in dimensions), tuple(d[1] for d in dimensions))
    other = Box(tuple(d[2] for d in dimensions), tuple(d[3] for d in dimensions))
    cells = [np.zeros((13,) * len(dimensions), dtype=bool) for _ in range(2)]
    for box, marked in zip((one, other), cells, strict=True):
        marked[box.slices((0,) * len(dimensions))] = True
    found = one.within(other)
    common = cells[0] & cells[1]
    assert (found is None) == (not common.any())
    if found is not None:
        assert common[found.slices((0,) * len(dimensions))].all() and common.sum() == np.prod(found.sizes)
    assert whole_box((2, 3)) == Box((0, 0), (2, 3))
