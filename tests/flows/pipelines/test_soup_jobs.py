"""A soup, a merged model and an export as jobs of a pipeline in a real ledger: killed anywhere, each is made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from db.ledger import Ledger
from flows.soups.parents import merge_of
from flows.soups.record import MERGED, SoupRecord
from tests.flows.pipelines.support import Plant
from tests.flows.soups.conftest import inputs
from tests.flows.soups.support import RUN, SOUP, Killed
from yatt_core.spec.reading.documents import yaml_text

__all__ = ["inputs"]
JOBS: dict[str, Any] = {
    "soup": {"kind": "soup", "spec": "soup.yaml", "set": ["tracking.tags.from=line"]},
    "merged": {"kind": "merge", "of": "soup", "preference": [0.25, 0.75]},
    "evaluation": {"kind": "evaluate", "of": "merged"},
    "model": {"kind": "export", "of": "merged", "dtype": "bfloat16", "needs": ["evaluation"]},
    "next": {"kind": "train", "spec": "run.yaml", "set": ["name=next", "iterations=2", "tracking.tags.from=${jobs.model.model}"]},
    "candidate": {"kind": "promote", "of": "merged", "to": "candidate", "needs": ["model"]},
}  # fmt: skip
FEW = (13, 20, 29)
"""Moments in which it is killed in every test run: while the soup is measured, when it is merged, and when it is exported."""
MOMENTS = 47
"""Moments of an undisturbed pipeline; in the last one it has ended."""
EVERY_MOMENT = [pytest.param(each, marks=[] if each in FEW else [pytest.mark.verify]) for each in range(1, MOMENTS)]


def plant_of(folder: Path, inputs: Path) -> Plant:
    plant = Plant.of(folder, inputs, JOBS)
    soup = {**SOUP, "betas": [0.7], "rewarded_soup": False}
    (folder / "soup.yaml").write_text(yaml_text(soup))
    (folder / "run.yaml").write_text(yaml_text(RUN | {"iterations": 4}))
    return plant


def check(plant: Plant) -> None:
    """Expects one soup with its two members, one merged run, one model, and one run that learned from it."""
    with Ledger.open(plant.home.ledger) as ledger:
        runs = {run.id for run in ledger.runs.list()}
        assert all(ledger.events.verify(run) is None for run in runs)
        outputs = {name: row.outputs for name, row in ledger.pipelines.jobs("line-1").items()}
        soup = str(outputs["soup"]["run"])
        merged = str(outputs["merged"]["run"])
        members = set(SoupRecord.of(ledger, soup).members().values())
        assert len(members) == 2 and runs == {soup, merged, *members, "next-1"}
        assert [link.body["run"] for link in ledger.events.of_kind(soup, MERGED)] == [merged]
        found = merge_of(ledger, merged)
        assert found is not None and (found["soup"], found["preference"], found["alpha"]) == (soup, [0.25, 0.75], 0.0)
        assert ledger.aliases.pointing(merged)["candidate"].iteration == outputs["merged"]["iteration"]
        (move,) = ledger.aliases.history(merged)
        assert move.alias == "candidate"
    model = Path(str(outputs["model"]["model"]))
    assert (model / "model").read_text() == f"{merged} {outputs['merged']['iteration']} bfloat16"
    assert [each.name for each in model.parent.iterdir()] == [model.name]
    assert {row.state for row in plant.jobs("line-1").values()} == {"done"}


def test_a_soup_is_trained_merged_exported_and_skipped(tmp_path: Path, inputs: Path) -> None:
    plant = plant_of(tmp_path / "plant", inputs)
    assert plant.run() == ("line-1", "finished")
    check(plant)
    assert plant.moment == MOMENTS
    did = list(plant.did)
    assert plant.run() == ("line-2", "finished") and plant.did == did
    assert {row.state for row in plant.jobs("line-2").values()} == {"skipped"}


@pytest.mark.parametrize("moment", EVERY_MOMENT)
def test_a_pipeline_with_a_soup_that_was_killed_makes_each_once(tmp_path: Path, inputs: Path, moment: int) -> None:
    plant = plant_of(tmp_path / "plant", inputs)
    plant.killed_at = moment
    with pytest.raises(Killed):
        plant.run()
    plant.killed_at = -1
    assert plant.run() == ("line-1", "finished")
    check(plant)
