"""The state machine of aliases: operators promote, drivers record and prune checkpoints, in any order.

The model holds where the aliases point and which checkpoints are kept; the ledger must agree after every step.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from db.core.errors import AliasRefused
from db.write.aliases import ALIASES, CHAMPION, ROLLBACK, CheckpointKey
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow
from tests.db.machines.world import DRIVERS, World

CHECKPOINTS = st.integers(0, 4)


class Promotions(World):
    """The model: the kept and the pruned checkpoints by iteration, the target of each alias, and every move."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[int] = set()
        self.pruned: set[int] = set()
        self.pointing: dict[str, int] = {}
        self.moves: list[tuple[str, int]] = []

    def _row(self, iteration: int) -> CheckpointRow:
        return CheckpointRow(self.run, 0, iteration, 1, f"s{iteration}", f"m{iteration}", 1, f"w{iteration}", 0.1)

    @rule(driver=DRIVERS, iteration=CHECKPOINTS)
    def record(self, driver: int, iteration: int) -> None:
        recorded = self.write(driver, lambda fence: self.ledger.records.checkpoint(fence, self._row(iteration)))
        if recorded:
            self.kept.add(iteration)

    @rule(driver=DRIVERS, iteration=CHECKPOINTS)
    def prune(self, driver: int, iteration: int) -> None:
        """Prunes a checkpoint, which may have been promoted after the driver decided to prune it."""
        if iteration not in self.kept:
            return
        gone = self.write(driver, lambda fence: self.ledger.records.checkpoint_pruned(fence, self._row(iteration)))
        if gone is not None:
            assert gone == (iteration not in self.pointing.values()), (
                "a checkpoint with an alias was pruned, or one without was kept"
            )
            if gone:
                self.kept.remove(iteration)
                self.pruned.add(iteration)

    @rule(alias=st.sampled_from(ALIASES), iteration=CHECKPOINTS)
    def promote(self, alias: str, iteration: int) -> None:
        before = dict(self.pointing)
        try:
            moves = self.ledger.aliases.promote(
                self.run, alias, CheckpointKey(0, iteration, 1), "ann", "because", lambda told: self._entries(told)
            )
        except AliasRefused:
            refused = alias == ROLLBACK and before.get(CHAMPION) in (None, iteration)
            assert iteration not in self.kept or refused
            return
        assert iteration in self.kept
        assert bool(moves) == (before.get(alias) != iteration)
        self.links += bool(moves)
        self.pointing[alias] = iteration
        if moves and alias == CHAMPION and CHAMPION in before:
            self.pointing[ROLLBACK] = before[CHAMPION]
        self.moves += [(move.alias, move.iteration) for move in moves]

    def _entries(self, moves: object) -> list[OutboxEntry]:
        assert isinstance(moves, list)
        return [OutboxEntry(f"{self.run}/alias-{move.number}", "alias", {}, move.at) for move in moves]

    @invariant()
    def the_ledger_says_the_same(self) -> None:
        pointing = {alias: key.iteration for alias, key in self.ledger.aliases.pointing(self.run).items()}
        assert pointing == self.pointing
        assert set(pointing.values()) <= self.kept, "an alias points to a pruned checkpoint"
        if ROLLBACK in pointing:
            assert pointing[ROLLBACK] != pointing[CHAMPION], "the rollback target is the champion itself"

    def teardown(self) -> None:
        """Checks that the history leads to the aliases' targets and that every move was enqueued once."""
        super().teardown()
        history = self.ledger.aliases.history(self.run)
        assert [(move.alias, move.iteration) for move in history] == self.moves
        assert [move.number for move in history] == list(range(1, len(history) + 1))
        assert {alias: move.iteration for alias, move in self.ledger.aliases.current(self.run).items()} == self.pointing
        assert self.ledger.outbox.counts(self.run) == (len(history), 0)
