"""`benchmarks.tool_turns`: both ways draw the same samples, whose turns and calls spread."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tool_turns.__main__ import WAYS, Bench

FEW = ("data.prompts_per_iteration=2", "rollout.batch_samples=8", "rollout.max_new_tokens=60", "model.hidden_size=32")


@pytest.mark.verify
@pytest.mark.timeout(120)
def test_both_ways_draw_the_same_samples(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FEW)
    receipts = {way: bench.collect(way, 0)[1] for way in WAYS}
    assert receipts["barriers"].group_digests == receipts["joined"].group_digests
    assert receipts["joined"].sums["tool_calls"] > 4
    lengths = bench.turns("joined", 0, receipts["joined"])
    assert len(lengths) == receipts["joined"].sums["tool_calls"] + receipts["joined"].samples
    assert max(lengths) > 2 * min(lengths)
