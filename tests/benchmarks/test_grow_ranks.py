"""`benchmarks.grow` with small models: the same code, whose figures mean little at this size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.grow import learning
from benchmarks.grow.loading import loading_figures
from benchmarks.grow.models import TINY
from tests.needs import NEEDS_MEGATRON

pytestmark = [pytest.mark.verify, NEEDS_MEGATRON]


def test_a_rank_loads_its_share(tmp_path: Path) -> None:
    figures, details = loading_figures(tmp_path, TINY | {"hidden_size": 512, "layers": 4, "intermediate_size": 1024})
    assert {name: len(ranks) for name, ranks in details.items()} == {"fsdp2": 2, "megatron": 2}
    found = figures["load_peak_over_share"]
    assert found is not None and 0.5 < found < 1.6, "a whole model would be 2"


def test_an_update_takes_no_distributions_of_all_tokens(tmp_path: Path) -> None:
    figures, details = learning.learning_figures(tmp_path, 60_000)
    assert sorted(details) == ["fsdp2", "megatron", "torch", "torch_general"]
    found = figures["learn_peak_mb_vocab_150k"]
    assert found is not None and 0 < found < learning.TOKENS * 60_000 * 4 / 2e6
