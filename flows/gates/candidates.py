"""The promotion rule: a kept checkpoint whose evaluation beats the champion's becomes candidate, and may become champion.

Consumes the results of the held-out tasks in the ledger, and the rule of the spec. Produces for each checkpoint that was
evaluated, once: a move of the alias `candidate` if it is better, the question whether it becomes champion if the spec has
that gate, and a link of the audit chain with the test. The link comes last, so that a driver that was killed judges again.
Without a champion, the checkpoint of iteration 0 is the one to beat. Results of the run never depend on any of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.aliases import CANDIDATE, CHAMPION, AliasMove, CheckpointKey
from db.write.outbox import OutboxEntry
from db.write.records import CheckpointRow
from flows.delivery.registry import moved_entries
from flows.gates.asking import ask
from flows.run.evaluations import evaluated_scores
from yatt_core.counting import many
from yatt_core.evaluation.paired import PairedComparison, compare, scored_by_both
from yatt_core.gates.due import PROMOTION, DueGate
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.flow")
BY_RULE = "candidate-"
"""Beginning of the keys of questions that the rule asks."""
JUDGED = "promotion_test"
"""The kind of the links that record tests."""
RULE = "promotion rule"
"""Who promotes by the rule."""


class Rival(NamedTuple):
    """The checkpoint to beat: its run, which may be a fork's parent, its key, and its name for people."""

    run: str
    key: CheckpointKey
    name: str


def judge_checkpoints(ledger: Ledger, fence: Fence, spec: RunSpec, at_ms: int) -> list[str]:
    """Judges the run's kept checkpoints that were evaluated and not judged yet; returns what to tell people.

    at_ms: the time of notifications.
    """
    rule = spec.evaluation.promotion
    run = fence.run
    if rule is None:
        return []
    judged = {CheckpointKey(**link.body["checkpoint"]) for link in ledger.events.of_kind(run, JUDGED)}
    told = []
    rows = ledger.records.checkpoints(run)
    trained = [row for row in rows if row.run == run and row.iteration > 0]
    for row in sorted(trained, key=lambda row: row.iteration):
        key = CheckpointKey(row.branch, row.iteration, row.term)
        rival = _rival(ledger, run, rows)
        commit = ledger.commits.at(run, row.iteration)
        if key in judged or rival is None or (rival.run, rival.key) == (run, key) or commit is None:
            continue
        own, others = scored_by_both(
            evaluated_scores(ledger=ledger, run=run, branch=key.branch, iteration=key.iteration, spec=spec),
            evaluated_scores(
                ledger=ledger, run=rival.run, branch=rival.key.branch, iteration=rival.key.iteration, spec=spec
            ),
        )
        if own:
            comparison = compare(first=own, second=others, test=rule.test, resamples=rule.resamples, seed=spec.seed)
            told.append(
                _record(ledger=ledger, fence=fence, spec=spec, row=row, rival=rival, found=comparison, at_ms=at_ms)
            )
    return told


def _rival(ledger: Ledger, run: str, rows: Sequence[CheckpointRow]) -> Rival | None:
    champion = ledger.aliases.pointing(run).get(CHAMPION)
    if champion is not None:
        return Rival(run, champion, f"the champion, iteration {champion.iteration}")
    first = next((row for row in rows if row.iteration == 0), None)
    return None if first is None else Rival(first.run, CheckpointKey(first.branch, 0, first.term), "iteration 0")


def _record(
    ledger: Ledger, fence: Fence, spec: RunSpec, row: CheckpointRow, rival: Rival, found: PairedComparison, at_ms: int
) -> str:
    """Carries out what follows from a test, then records it; returns what to tell people."""
    rule = spec.evaluation.promotion
    run = fence.run
    assert rule is not None, "the caller has a rule"
    key = CheckpointKey(row.branch, row.iteration, row.term)
    beats = found.is_better(rule.level)
    said = (
        f"iteration {row.iteration} {'beats' if beats else 'does not beat'} {rival.name}: {found.difference:+.3f} over "
        f"{many(found.tasks, 'task')} ({found.wins} won, {found.losses} lost), p = {found.p_value:.3g}, level {rule.level:g}"
    )
    evidence = {"against": rival.key._asdict(), "level": rule.level, **asdict(found)}
    if beats:

        def tell(moves: Sequence[AliasMove]) -> list[OutboxEntry]:
            return moved_entries(spec, moves)

        ledger.aliases.promote(run=run, alias=CANDIDATE, target=key, by=RULE, why=said, tell=tell)
        gate = spec.gates.promotion
        if gate is not None:
            name = f"{BY_RULE}b{key.branch}-i{key.iteration}-t{key.term}"
            _withdraw_older(ledger, run, name, row.iteration)
            question = DueGate(PROMOTION, name, f"make it champion? {said}", gate)
            proof = {**key._asdict(), "weights_digest": row.weights_digest, **evidence}
            ask(ledger=ledger, run=run, spec=spec, due=question, evidence=proof, at_ms=at_ms, fence=fence)
    ledger.events.append(run, JUDGED, {"checkpoint": key._asdict(), "beats": beats, **evidence}, fence)
    log.info("%s", said)
    return said


def _withdraw_older(ledger: Ledger, run: str, name: str, iteration: int) -> None:
    """Closes the rule's open questions about earlier candidates."""
    for each in ledger.approvals.of(run):
        if each.decision is None and each.key.startswith(BY_RULE) and each.key != name:
            ledger.approvals.withdraw(each.id, f"iteration {iteration} is the candidate now")
