"""Keys, folders and seeds: pinned, because files and results of old runs depend on them."""

from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.keys import (
    CHECKPOINT_NAME,
    SHARD_NAME,
    WorkKey,
    checkpoint_folder,
    iteration_folder,
    sample_seed,
    shard_folder,
    stable_seed,
)

KEY = WorkKey("quickstart-3", branch=1, iteration=12, phase="collect", wave=2, shard=7)
COUNTERS = st.tuples(*[st.integers(0, 40)] * 6)


def test_a_key_as_text():
    assert str(KEY) == "quickstart-3/b1/i12/collect/w2/s7"
    assert str(WorkKey("r", 0, 1, "learn")) == "r/b0/i1/learn/w0/s0"


def test_keys_are_ordered_by_wave_and_shard_within_a_phase():
    keys = [WorkKey("r", 0, 1, "collect", wave, shard) for wave in (1, 0) for shard in (10, 9)]
    assert [(key.wave, key.shard) for key in sorted(keys)] == [(0, 9), (0, 10), (1, 9), (1, 10)]


@given(st.lists(COUNTERS, min_size=2, max_size=2, unique_by=lambda counters: counters[:4]))
def test_different_keys_have_different_texts(pair):
    first, second = (WorkKey("r", b, i, "collect", w, s) for b, i, w, s, *_ in pair)
    assert first != second
    assert str(first) != str(second)


def test_folders():
    assert str(iteration_folder(0, 12)) == "experience/b000/i000012"
    assert str(shard_folder(KEY, term=3)) == "experience/b001/i000012/w02-s0007.t0003"
    assert str(checkpoint_folder(1, 20, 4)) == "checkpoints/b001-i000020.t0004"


def test_a_folder_is_known_by_its_name():
    """Names of folders must match the patterns with which sweeps find them."""
    assert re.fullmatch(SHARD_NAME, shard_folder(KEY, term=3).name).group(1) == "0003"
    assert re.fullmatch(CHECKPOINT_NAME, checkpoint_folder(1, 20, 4).name).group(1) == "0004"


def test_term_and_writer_are_in_the_folder_and_not_in_the_key():
    assert shard_folder(KEY, 1) != shard_folder(KEY, 2)
    assert str(shard_folder(KEY, 3, writer=2)) == "experience/b001/i000012/w02-s0007.t0003.2"
    assert "term" not in WorkKey.__dataclass_fields__


def test_seeds_are_the_first_eight_bytes_of_a_hash():
    expected = int.from_bytes(hashlib.sha256(b"sample:0:1:2:3:4:0:0").digest()[:8], "little")
    assert sample_seed(0, branch=1, iteration=2, ordinal=3, sample=4) == expected == 2_672_908_953_726_015_697
    assert stable_seed("term", 5, 6) == int.from_bytes(hashlib.sha256(b"term:5:6").digest()[:8], "little")


@given(st.lists(COUNTERS, min_size=2, max_size=2, unique=True))
def test_every_counter_is_part_of_the_seed(pair):
    first, second = (sample_seed(*counters) for counters in pair)
    assert first != second
    assert 0 <= first < 2**64


def test_the_purpose_is_part_of_the_seed():
    assert stable_seed("a", 1) != stable_seed("b", 1)
    assert stable_seed("a", 1, 2) != stable_seed("a", 12)
    assert stable_seed("a") != stable_seed("a", 0)
