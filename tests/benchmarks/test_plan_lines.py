"""`benchmarks.grow.plan_lines` with a smaller model: the plan's lines against what two ranks really hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.grow.models import TINY
from benchmarks.grow.plan_lines import SIZES, plan_figures
from tests.needs import NEEDS_MEGATRON
from yatt_core.bfloat16.way import way_of_processor

UNUSED = {"prepare": 1.4, "learn": 1.7}
"""A plan counts widened operands of bfloat16, which a processor with instructions for it does not need."""
SMALLER = SIZES | {"hidden_size": 256, "layers": 4, "heads": 4, "key_value_heads": 2, "intermediate_size": 704}


@pytest.mark.verify
@pytest.mark.timeout(600)
@NEEDS_MEGATRON
def test_every_line_of_the_plan_agrees_with_what_ranks_hold(tmp_path: Path) -> None:
    _, found = plan_figures(tmp_path, SMALLER, TINY | {"hidden_size": 256})
    lines = {"weights", "optimizer", "reference", "load", "prepare", "learn", "checkpoint"}
    for layout, rows in found["measured"].items():
        assert lines <= rows.keys()
        exact = {name: rows[name]["ratio"] for name in ("weights", "optimizer", "reference")}
        assert exact == pytest.approx(dict.fromkeys(exact, 1.0), rel=0.01), layout
        most = dict.fromkeys(lines, 1.25) | (UNUSED if layout != "fsdp2" and way_of_processor() == "native" else {})
        off = {name: rows[name]["ratio"] for name in lines if not 0.8 < rows[name]["ratio"] < most[name]}
        assert off == {}, layout
    assert {name: rows.keys() >= lines for name, rows in found["examples"].items()} == {"7b": True, "72b": True}
