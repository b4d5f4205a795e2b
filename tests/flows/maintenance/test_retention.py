"""Retention with a lag or slices: what is kept stays bounded, and everything that may be needed can be made again."""

from __future__ import annotations

import itertools

import pytest

from db.core.ancestry import OPEN_END, IterationRange
from db.write.records import CheckpointRow
from flows.files.retention import needed_files

RUN = "r"
LINE = (IterationRange(RUN, 0, 0, OPEN_END),)
ITERATIONS = 40


def checkpoint(iteration: int) -> CheckpointRow:
    return CheckpointRow(
        run=RUN,
        branch=0,
        iteration=iteration,
        term=1,
        folder=str(iteration),
        manifest_sha256="",
        bytes=0,
        weights_digest="",
        seconds=0.0,
    )


@pytest.mark.parametrize(("every", "keep"), itertools.product([1, 2, 3, 7], [1, 2, 4]))
@pytest.mark.parametrize(("lag", "carried"), [(0, 0), (1, 0), (3, 0), (0, 4), (2, 5)])
def test_weights_of_every_sample_can_be_computed_again_from_a_bounded_set(
    every: int, keep: int, lag: int, carried: int
) -> None:
    span = lag + carried
    rows = [checkpoint(0)]
    experience = set[int]()
    for committed in range(1, ITERATIONS + 1):
        experience.add(committed)
        if committed % every == 0:
            rows.append(checkpoint(committed))
        needed = needed_files(
            own=rows,
            current=LINE,
            committed=committed,
            base_lines=[],
            keep=keep,
            aliased=[],
            span=span,
            carried=carried,
        )
        rows = [row for row in rows if row.folder in needed.checkpoints]
        experience = {one for one in experience if needed.replays(RUN, 0, one)}

        kept = [row.iteration for row in rows]
        newest = list(range(0, committed + 1, every))[-keep:]
        assert kept[-len(newest) :] == newest
        assert len(kept) <= keep + -(-span // every) + 1
        assert len(experience) <= every * (keep + 1) + span + carried

        base = max(one for one in kept if one <= max(0, newest[0] - span))
        # An update learns from what was sealed up to `carried` iterations earlier.
        assert experience >= set(range(max(1, base + 1 - carried), committed + 1))
