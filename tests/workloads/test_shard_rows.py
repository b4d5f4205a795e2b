"""Shards of an iteration's rows: which cuts are taken, which are refused, and what shards must have in common to be joined."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.errors import ConfigurationError
from yatt_core.experience.sampled import seal_sampled
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import ShardRef
from yatt_core.workloads.columns import encode_columns
from yatt_core.workloads.contract import Array
from yatt_core.workloads.sampled_files import COLUMNS_FILE, joined_columns
from yatt_core.workloads.shard_rows import checked_shards

PLACE = "workload.kind: Mine"


def rows(count: int) -> dict[str, Array]:
    return {"seed": np.arange(count), "image": np.zeros((count, 2))}


@given(count=st.integers(1, 30), data=st.data())
def test_shards_name_each_row_once(count: int, data: st.DataObject) -> None:
    inner = data.draw(st.sets(st.integers(1, count - 1)) if count > 1 else st.just(set()))
    ends = [0, *sorted(inner), count]
    cut = [slice(start, stop) for start, stop in pairwise(ends)]
    assert list(checked_shards(rows(count), cut, PLACE)) == cut
    beyond = [*cut[:-1], slice(cut[-1].start, count + 5)]
    assert list(checked_shards(rows(count), beyond, PLACE)) == cut
    place = data.draw(st.integers(0, len(cut) - 1))
    for wrong in (
        [*cut[:place], *cut[place + 1 :]],
        [*cut[: place + 1], *cut[place:]],
        [*cut[:place], slice(cut[place].start, cut[place].start), *cut[place:]],
        [*cut, slice(count, count + 1)],
    ):
        with pytest.raises(ConfigurationError, match=rf"^{re.escape(PLACE)}: shards: .*expected"):
            checked_shards(rows(count), wrong, PLACE)


@pytest.mark.parametrize(
    ("columns", "shards", "message"),
    [
        (rows(4), [slice(0, 4, 2)], "shards: shard 0 is slice"),
        (rows(4), [slice(3, None, -1)], "shards: shard 0 is slice"),
        (rows(4), [range(4)], r"shards returned \[range\(0, 4\)\]; expected slices of rows"),
        (rows(4), None, "shards returned None; expected slices of rows"),
        (rows(0), [slice(0, 0)], "draw: its columns have these numbers of rows"),
        ({}, [slice(0, 1)], "draw: its columns have these numbers of rows"),
        (
            {"seed": np.arange(4), "one": np.array(1)},
            [slice(0, 4)],
            r"draw: its columns have these numbers of rows: \{'seed': 4, 'one': 0\}",
        ),
        (
            {"seed": np.arange(4), "few": np.arange(3)},
            [slice(0, 4)],
            r"draw: its columns have these numbers of rows: \{'seed': 4, 'few': 3\}",
        ),
        ({"seed": [1]}, [slice(0, 1)], "draw: column 'seed' is list"),
    ],
)
def test_other_cuts_and_columns_are_refused(columns: Any, shards: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(PLACE)}: {message}"):
        checked_shards(columns, shards, PLACE)


def sealed(folder: Path, *shards: dict[str, Any]) -> list[ShardRef]:
    return [
        seal_sampled(
            run_folder=folder,
            key=WorkKey("run", 0, 1, "collect", shard=number),
            term=1,
            made_by="",
            contents={COLUMNS_FILE: encode_columns(columns, PLACE)},
        )
        for number, columns in enumerate(shards)
    ]


def test_shards_are_joined_row_by_row(tmp_path: Path) -> None:
    shards = sealed(tmp_path, {"a": np.zeros((2, 3))}, {"a": np.ones((1, 3))}, {"a": np.full((2, 3), 2.0)})
    assert joined_columns(tmp_path, shards, range(1, 3))["a"][:, 0].tolist() == [1.0, 2.0, 2.0]
    assert joined_columns(tmp_path, shards, range(0))["a"].shape == (0, 3)


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"a": np.zeros((2, 4))}, "a float64 [rows, 4]; expected a float64 [rows, 3]"),
        ({"a": np.zeros((2, 3), np.float32)}, "a float32 [rows, 3]; expected a float64 [rows, 3]"),
        ({"a": np.zeros(2)}, "a float64 [rows]; expected a float64 [rows, 3]"),
        ({"b": np.zeros((2, 3))}, "b float64 [rows, 3]; expected a float64 [rows, 3]"),
        ({"a": np.zeros((2, 3)), "b": np.zeros(2)}, "a float64 [rows, 3], b float64 [rows]; expected"),
    ],
)
def test_shards_with_other_columns_are_refused(other: dict[str, Any], found: str, tmp_path: Path) -> None:
    shards = sealed(tmp_path, {"a": np.zeros((2, 3))}, other)
    with pytest.raises(ConfigurationError, match=re.escape(found)):
        joined_columns(tmp_path, shards, range(2))
