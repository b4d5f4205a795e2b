"""Shards, waves, decisions and checkpoints: the first record is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from db.core.engine import Fence
from db.core.errors import Conflict, OutOfOrder
from db.ledger import Ledger
from db.write.records import CheckpointRow, ChoiceRow, DecisionRow, ShardRow, WaveRow
from tests.db.tools import SimulatedClock, holder

SHARD = ShardRow(0, 1, 0, 3, 1, "w00-s0003.t0001", "sha", 4, 90, bytes(range(64)), {"reward": 1.5})


def test_a_shard_is_admitted_once(ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock) -> None:
    assert ledger.records.shard(fence, SHARD)
    clock.advance(60)
    second = ledger.leases.acquire(run, holder("second"), ttl_seconds=10)
    assert not ledger.records.shard(second, replace(SHARD, adopted=True)), "the same files, found again"
    with pytest.raises(Conflict, match=r"iteration 1, wave 0, shard 3: w00-s0003\.t0001 .*w00-s0003\.t0002 "):
        ledger.records.shard(second, replace(SHARD, term=2, folder="w00-s0003.t0002", manifest_sha256="other"))
    assert ledger.records.shards(run, 0, 1) == [SHARD]


def test_a_lost_shard_is_replaced_only_by_the_same_samples(ledger: Ledger, run: str, fence: Fence) -> None:
    made = replace(SHARD, term=2, folder="w00-s0003.t0002", manifest_sha256="other")
    with pytest.raises(OutOfOrder, match="iteration 1, wave 0, shard 3"):
        ledger.records.replace_shard(fence, made)
    ledger.records.shard(fence, SHARD)
    with pytest.raises(Conflict, match=r"iteration 1, wave 0, shard 3: .*w00-s0003\.t0002 .*w00-s0003\.t0001"):
        ledger.records.replace_shard(fence, replace(made, group_digests=bytes(64)))
    assert ledger.records.shards(run, 0, 1) == [SHARD]
    ledger.records.replace_shard(fence, made)
    assert ledger.records.shards(run, 0, 1) == [made]
    (link,) = ledger.events.of_kind(run, "shard_regenerated")
    assert link.body["lost"] == {"folder": SHARD.folder, "manifest_sha256": "sha"}
    assert link.body["made"] == {"folder": made.folder, "manifest_sha256": "other"}


def test_shards_come_in_canonical_order(ledger: Ledger, run: str, fence: Fence) -> None:
    for wave, shard in ((1, 0), (0, 10), (0, 9)):
        ledger.records.shard(fence, replace(SHARD, wave=wave, shard=shard))
    assert [(row.wave, row.shard) for row in ledger.records.shards(run, 0, 1)] == [(0, 9), (0, 10), (1, 0)]
    assert [row.shard for row in ledger.records.shards(run, 0, 1, wave=1)] == [0]
    assert ledger.records.shards(run, 0, 2) == []
    overview = ledger.overview.show(run)
    assert (overview.samples, overview.tokens) == (12, 270)


def test_a_wave_keeps_its_first_plan(ledger: Ledger, run: str, fence: Fence) -> None:
    plan = WaveRow(0, 1, 0, {"prompts": [1, 2]})
    assert ledger.records.wave(fence, plan) == plan
    assert ledger.records.wave(fence, replace(plan, plan={"prompts": [3]})) == plan
    ledger.records.settle_wave(fence, 0, 1, 0, {"admitted": [1]})
    with pytest.raises(OutOfOrder, match="iteration 1, wave 0"):
        ledger.records.settle_wave(fence, 0, 1, 0, {"admitted": [2]})
    with pytest.raises(OutOfOrder, match="wave 5"):
        ledger.records.settle_wave(fence, 0, 1, 5, {})
    assert ledger.records.waves(run, 0, 1) == [replace(plan, outcome={"admitted": [1]})]
    assert not ledger.events.of_kind(run, "sampling_short")
    ledger.records.wave(fence, replace(plan, wave=1))
    ledger.records.settle_wave(fence, 0, 1, 1, {"admitted": []}, "too few are valid")
    (link,) = ledger.events.of_kind(run, "sampling_short")
    assert link.body == {"branch": 0, "iteration": 1, "wave": 1, "warning": "too few are valid"}


@pytest.mark.postgresql
def test_the_first_choice_is_binding_for_every_driver(
    ledger: Ledger, run: str, fence: Fence, clock: SimulatedClock
) -> None:
    first = ledger.records.choice(fence, ChoiceRow(0, 1, "ranks", {"plan": (0, 1), "reason": "load"}))
    assert first == ChoiceRow(0, 1, "ranks", {"plan": [0, 1], "reason": "load"}, fence.term)
    clock.advance(60)
    second = ledger.leases.acquire(run, holder("second"), ttl_seconds=10)
    assert ledger.records.choice(second, ChoiceRow(0, 1, "ranks", {"plan": [2]})) == first
    skip = ledger.records.choice(second, ChoiceRow(0, 1, "skip", {}))
    assert ledger.records.choices(run, 0, 1) == {"ranks": first, "skip": skip}
    assert ledger.records.choices(run, 0, 2) == {}
    events = [link.body for link in ledger.events.links(run) if link.kind == "choice"]
    assert [(body["name"], body["term"]) for body in events] == [("ranks", 1), ("skip", 2)]
    assert events[0]["body"] == {"plan": [0, 1], "reason": "load"}


def test_the_first_decision_is_binding_and_its_outcome_is_recorded(ledger: Ledger, run: str, fence: Fence) -> None:
    first = DecisionRow(0, 1, 0, {"load": 0.5}, {"rollout": [0, 1]}, {"seconds": 3.0}, "rollout is the bottleneck")
    assert ledger.records.decision(fence, first) == first
    assert ledger.records.decision(fence, replace(first, decision={"rollout": [0]})) == first
    ledger.records.decision_outcome(fence, 0, 1, 0, {"seconds": 3.5})
    with pytest.raises(OutOfOrder, match="decision 0"):
        ledger.records.decision_outcome(fence, 0, 1, 0, {"seconds": 9.9})
    assert ledger.records.decisions(run, 0, 1) == [replace(first, outcome={"seconds": 3.5})]


def test_a_pruned_checkpoint_keeps_its_row(ledger: Ledger, run: str, fence: Fence) -> None:
    old = CheckpointRow(run, 0, 0, 1, "s0", "m0", 10, "w0", 0.1)
    new = CheckpointRow(run, 0, 5, 1, "s5", "m5", 10, "w5", 0.2)
    assert ledger.records.checkpoint(fence, old)
    assert ledger.records.checkpoint(fence, new)
    assert not ledger.records.checkpoint(fence, new)
    with pytest.raises(Conflict, match=r"\bs5\b"):
        ledger.records.checkpoint(fence, replace(new, manifest_sha256="other"))
    assert ledger.records.checkpoints(run) == [new, old]
    ledger.records.checkpoint_pruned(fence, old)
    assert ledger.records.checkpoints(run) == [new]
    assert ledger.records.checkpoints(run, state=None) == [new, replace(old, state="pruned")]
