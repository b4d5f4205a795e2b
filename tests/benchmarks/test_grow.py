"""`benchmarks.grow` with a small model: the same code, whose figures mean little at this size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.grow.checkpoints import checkpoint_figures
from tests.needs import NEEDS_MEGATRON

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8000,
}


@pytest.mark.verify
@NEEDS_MEGATRON
def test_a_rank_writes_its_share_and_reads_what_it_needs(tmp_path: Path) -> None:
    figures, costs = checkpoint_figures(tmp_path, SMALL)
    assert {name: len(ranks) for name, ranks in costs.items()} == {"fsdp2": 2, "megatron": 2}
    for ranks in costs.values():
        shares = [cost["share"] for cost in ranks]
        assert max(shares) < 1.05 * min(shares) and min(shares) > 3 * 4 * 2e6
    peak, read = figures["checkpoint_peak_over_share"], figures["restore_read_over_share"]
    assert peak is not None and 0.9 < peak < 4.0, "buffers of a fixed size weigh more here"
    assert read is not None and 1.0 <= read < 1.3
