"""A run that classifies nodes and is killed in every phase ends with the bits of one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.workloads.tests.killed import KILLED_AT, both_ways, resumed_on_another_number

SPEC = Path(__file__).parents[2] / "specs" / "blocks.yaml"
GRAPH = "generated: {nodes: 120, classes: 3, within: 8, across: 2}, width: 8, steps: 2"
SAMPLED = "sampling: {batch: 40, part: 16, neighbours: 3}"


@pytest.mark.parametrize(
    "settings", [pytest.param(f"{{{GRAPH}}}", marks=pytest.mark.verify), f"{{{GRAPH}, {SAMPLED}}}"]
)
def test_killed_in_every_phase(settings: str, tmp_path: Path) -> None:
    both_ways(tmp_path, SPEC, [f"workload.settings={settings}"], KILLED_AT)


def test_resumed_on_another_number_of_ranks(tmp_path: Path) -> None:
    """Without dropout: threads of one process share the generator that it draws from, which ranks do not."""
    settings = f"workload.settings={{{GRAPH}, {SAMPLED}, dropout: 0, attention_dropout: 0}}"
    resumed_on_another_number(tmp_path, SPEC, [settings], (1, 2))
