"""Explanations and replays say which devices the trainer had, and when it lent them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.placement.explain import Explanation, explain, gantt_of
from flows.placement.record import PlacementRecord
from flows.placement.replay import _levelling, compare_all, lent_as_recorded, replay
from flows.run.home import Home
from ops.cli.commands.inspection.placement_tables import print_explanation, print_gantt
from tests.placement.recorded_run import judged_spec, record_run
from yatt_core.placement.actions import TRAINING, trainer_line
from yatt_core.placement.lending import Levelled
from yatt_core.placement.policies.fixed import Hold
from yatt_core.placement.records import setting_from_json

LAG = ("asynchrony.lag=1", "trainer.engine.ranks=1")


def explained(home: Home, run: str, iteration: int = 2) -> Explanation:
    with Ledger.open(home.ledger, migrate=False) as ledger:
        return explain(PlacementRecord(ledger, home, run).at(iteration))


def test_lent_devices_are_explained_drawn_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path / "runs")
    kept = [(0.01, trainer_line(0, True)), (0.4, trainer_line(0, False))]
    run = record_run(
        home,
        judged_spec(*LAG, "placement.trainer=lent", "placement.mode=dynamic"),
        iterations=3,
        trainer_lines=kept,
    )
    found = explained(home, run)
    assert found.trainer == "on the devices of instances 0, which generate from 0.40 s on"
    use = {each.role: each for each in found.roles}
    assert use[TRAINING].device_s == pytest.approx(0.39)
    print_explanation(found)
    with Ledger.open(home.ledger, migrate=False) as ledger:
        record = PlacementRecord(ledger, home, run)
        placements = list(record.between(1, 3))
        print_gantt(gantt_of(record.at(2)))
    shown = capsys.readouterr().out
    assert "trainer     on the devices of instances 0" in shown and "t trainer" in shown
    assert all(replay(placement).same for placement in placements)
    setting = setting_from_json(placements[1].row.inputs["setting"])
    assert (setting.lent, setting.lent_after_s) == (1, 0.0), "nothing was measured yet"
    work = placements[1].work
    assert work is not None
    assert lent_as_recorded(setting, work.actions).lent_after_s == 0.4
    assert lent_as_recorded(setting, work.actions[:1]).lent_after_s is None
    row = placements[1].row
    assert isinstance(_levelling(row, setting, Hold()), Levelled)
    assert isinstance(_levelling(row, replace(setting, lent=0), Hold()), Hold), (
        "as an earlier version recorded its pool"
    )
    comparison = compare_all(run, "colocate", placements)
    assert comparison.iterations == 3 and all(row.recorded_s for row in comparison.rows)


def test_devices_of_its_own_are_named(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    apart = record_run(home, judged_spec(*LAG, "placement.trainer=apart"), iterations=2, devices=5)
    assert explained(home, apart).trainer == "on devices of its own: 0"


def test_a_shared_device_needs_no_words(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    shared = record_run(home, judged_spec(), iterations=2)
    assert explained(home, shared).trainer == ""
