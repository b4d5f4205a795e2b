"""`benchmarks.grow` with a small model: the same code, whose figures mean little at this size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.grow.checkpoints import checkpoint_figures
from benchmarks.grow.models import TINY
from benchmarks.grow.receivers import KINDS, kinds_here
from benchmarks.grow.transfers import RATIOS, transfer_figures
from tests.needs import NEEDS_MEGATRON
from tests.services import ROOT

DELTA_LIMIT = 0.05
HIDDEN = re.compile(r"""vars\(.*\)\[["']_[a-z]|getattr\([^)]*, ["']_[a-z]""")
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
    peak = figures["checkpoint_peak_over_share"]
    read = figures["restore_read_over_share"]
    assert peak is not None and 0.9 < peak < 4.0, "buffers of a fixed size weigh more here"
    assert read is not None and 1.0 <= read < 1.3


@pytest.mark.verify
@pytest.mark.timeout(1200)
def test_the_changes_of_the_benchmarks_model_are_within_their_limit(tmp_path: Path) -> None:
    """With its own sizes: of a smaller model, more of the rounded numbers change."""
    names = [name for name in kinds_here() if KINDS[name].devices < 2]
    figures, _ = transfer_figures(tmp_path, kinds=names)
    for key in ("delta_bytes_over_model", *(["delta_bytes_over_model_vllm"] if "vllm" in names else [])):
        share = figures[key]
        assert share is not None and 0.0 < share <= DELTA_LIMIT, key


def test_no_benchmark_takes_a_private_name_where_mypy_does_not_see_that_it_has_moved() -> None:
    """Through `vars` or `getattr`; typed attributes are checked by `make types`."""
    hidden = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if HIDDEN.search(line)
    ]
    assert hidden == []
    assert HIDDEN.search('model: Any = vars(engine)["_model"]') and HIDDEN.search('getattr(engine, "_model", None)')


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_weights_are_sent_once_and_changes_are_few(tmp_path: Path) -> None:
    names = [name for name in kinds_here() if KINDS[name].devices < 2]
    figures, details = transfer_figures(tmp_path, TINY | {"hidden_size": 256, "intermediate_size": 512}, names)
    kinds = {name: details[name] for name in names}
    for name, kind in kinds.items():
        rank, other, *engines = kind["processes"]
        assert len(engines) == KINDS[name].count and all(each["bytes"] == engines[0]["bytes"] for each in engines)
        assert rank["bytes"] + other["bytes"] == engines[0]["bytes"] >= engines[0]["model"]
        assert len(kind["peaks"]) == 2 + KINDS[name].count and min(kind["peaks"]) > 0
    for name in RATIOS:
        found = [kind[name] for kind in kinds.values()]
        assert figures[name] == max(found) > 0, "the worst of all kinds"
    sent = figures["sync_bytes_over_model"]
    torch = kinds["torch"]
    assert sent is not None and 1.0 <= sent < 1.2
    rank, other, *engines = torch["processes"]
    share = figures["delta_bytes_over_model"]
    assert share == torch["delta_bytes_over_model"] == (rank["delta"] + other["delta"]) / engines[0]["model"]
    assert share is not None and 0 < share < 0.1, "rounded to bfloat16, few numbers change"
    if "vllm" in kinds:
        assert figures["delta_bytes_over_model_vllm"] == pytest.approx(share, rel=0.01), "whatever engine takes them"
    both = torch["both_seconds"]
    apart = torch["seconds"] + torch["copy_seconds"]
    assert figures["sync_beside_copy_over_sum"] == pytest.approx(both / apart)
    assert details["hidden_seconds"] == pytest.approx(apart - both)
    assert all(len(each[name]) == len(engines[0]["both"]) for each in torch["processes"] for name in ("copy", "both"))
