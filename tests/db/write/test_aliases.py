"""Aliases in the ledger: promotions in any order, concurrently, and during the pruning of checkpoints."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.core.engine import Fence
from db.core.errors import AliasRefused, RunNotFound
from db.ledger import Ledger
from db.write.aliases import ALIASES, CANDIDATE, CHAMPION, PROMOTION, ROLLBACK, AliasMove, CheckpointKey, moves_of
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow
from tests.db.tools import everything

WORKERS = 4


def key(iteration: int) -> CheckpointKey:
    return CheckpointKey(0, iteration, 1)


def record(ledger: Ledger, fence: Fence, *iterations: int) -> list[CheckpointRow]:
    rows = [CheckpointRow(fence.run, 0, i, 1, f"s{i}", f"m{i}", 1, f"w{i}", 0.1) for i in iterations]
    for row in rows:
        ledger.records.checkpoint(fence, row)
    return rows


@given(st.lists(st.tuples(st.sampled_from(ALIASES), st.integers(0, 3)), max_size=12))
def test_any_order_of_promotions_keeps_champion_and_rollback_apart(promotions: list[tuple[str, int]]) -> None:
    current: dict[str, CheckpointKey] = {}
    for alias, iteration in promotions:
        champion = current.get(CHAMPION)
        try:
            moves = moves_of(alias, key(iteration), current)
        except AliasRefused:
            assert alias == ROLLBACK and champion in (None, key(iteration))
            continue
        assert not moves or list(moves)[-1] == alias
        current |= moves
        assert current[alias] == key(iteration)
        assert ROLLBACK not in current or current[ROLLBACK] != current[CHAMPION]
        if alias == CHAMPION and champion not in (None, key(iteration)):
            assert current[ROLLBACK] == champion
        if alias != CHAMPION:
            assert current.get(CHAMPION) == champion


def test_the_former_champion_becomes_the_rollback_target(ledger: Ledger, run: str, fence: Fence) -> None:
    record(ledger, fence, 0, 2, 4)
    ledger.aliases.promote(run, CHAMPION, key(0), "ann", "the first")
    moves = ledger.aliases.promote(run, CHAMPION, key(2), "bob", "better")
    assert [(move.number, move.alias, move.iteration) for move in moves] == [(2, ROLLBACK, 0), (3, CHAMPION, 2)]
    ledger.aliases.promote(run, CANDIDATE, key(4), "ann", "may be better")
    current = ledger.aliases.current(run)
    assert {alias: move.iteration for alias, move in current.items()} == {CANDIDATE: 4, CHAMPION: 2, ROLLBACK: 0}
    assert (current[CHAMPION].by, current[CHAMPION].why, current[CHAMPION].folder) == ("bob", "better", "s2")
    # Back to the former champion: the two swap.
    ledger.aliases.promote(run, CHAMPION, key(0), "ann", "2 talks nonsense")
    assert {a: k.iteration for a, k in ledger.aliases.pointing(run).items()} == {CANDIDATE: 4, CHAMPION: 0, ROLLBACK: 2}
    links = ledger.events.of_kind(run, PROMOTION)
    assert [(link.body["alias"], link.body["by"], len(link.body["moves"])) for link in links] == [
        (CHAMPION, "ann", 1),
        (CHAMPION, "bob", 2),
        (CANDIDATE, "ann", 1),
        (CHAMPION, "ann", 2),
    ]
    assert [move.seq for move in ledger.aliases.history(run)] == [links[i].seq for i in (0, 1, 1, 2, 3, 3)]
    assert ledger.events.verify(run) is None


def test_a_refused_promotion_changes_nothing(ledger: Ledger, run: str, fence: Fence) -> None:
    old, _ = record(ledger, fence, 0, 2)
    assert ledger.records.checkpoint_pruned(fence, old, [OutboxEntry("gone", "checkpoint", {}, 1)])
    assert ledger.outbox.counts(run) == (1, 0)
    with pytest.raises(AliasRefused, match=f"{CHAMPION}.*{ROLLBACK}"):
        ledger.aliases.promote(run, ROLLBACK, key(2), "ann", "why")
    ledger.aliases.promote(run, CHAMPION, key(2), "ann", "why")
    before = everything(ledger)
    for alias, iteration, says in (
        (CANDIDATE, 0, "iteration 0.*pruned"),
        (CANDIDATE, 5, "iteration 5.*recorded"),
        (ROLLBACK, 2, "iteration 2 .*champion"),
        ("winner", 2, "'winner'.*candidate, champion, rollback"),
    ):
        with pytest.raises(AliasRefused, match=says):
            ledger.aliases.promote(run, alias, key(iteration), "ann", "why")
    with pytest.raises(RunNotFound):
        ledger.aliases.promote("nobody-1", CHAMPION, key(2), "ann", "why")
    assert ledger.aliases.promote(run, CHAMPION, key(2), "bob", "again") == []
    assert everything(ledger) == before


@pytest.mark.postgresql
def test_concurrent_promotions_are_serialized(ledger: Ledger, run: str, fence: Fence) -> None:
    record(ledger, fence, *range(WORKERS))
    barrier = Barrier(WORKERS)

    def promote(iteration: int) -> list[AliasMove]:
        barrier.wait()
        return ledger.aliases.promote(run, CHAMPION, key(iteration), f"worker {iteration}", "race")

    with ThreadPoolExecutor(WORKERS) as pool:
        done = list(pool.map(promote, range(WORKERS)))
    history = ledger.aliases.history(run)
    assert [move.number for move in history] == list(range(1, 2 * WORKERS))
    assert sorted(len(moves) for moves in done) == [1] + [2] * (WORKERS - 1)
    champions = [move.iteration for move in history if move.alias == CHAMPION]
    assert sorted(champions) == list(range(WORKERS))
    assert [move.iteration for move in history if move.alias == ROLLBACK] == champions[:-1]
    assert ledger.events.verify(run) is None


@pytest.mark.postgresql
def test_a_checkpoint_is_not_pruned_while_it_is_promoted(ledger: Ledger, run: str, fence: Fence) -> None:
    """The driver had already decided to prune it; the transaction that would prune it notices the promotion."""
    (row,) = record(ledger, fence, 0)
    promoting = Event()
    pruned = Event()

    def prune() -> bool:
        promoting.wait(30)
        gone = ledger.records.checkpoint_pruned(fence, row)
        pruned.set()
        return gone

    def in_the_middle(moves: object) -> list[OutboxEntry]:
        promoting.set()
        pruned.wait(0.5)  # a driver that does not wait for this transaction is done by now
        return []

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(prune)
        ledger.aliases.promote(run, CHAMPION, key(0), "ann", "why", in_the_middle)
        assert not waiting.result(30)
    assert ledger.aliases.current(run)[CHAMPION].state == "kept"
