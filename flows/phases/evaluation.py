"""The answers to the held-out tasks: all of them or, with a deadline, those that are there when it is over.

Consumes the held-out tasks and the clock. Which tasks are left out is a choice: it is recorded before the results are
used, and a driver that evaluates the iteration again answers the same tasks.
"""

from __future__ import annotations

import logging

from db.write.records import ChoiceRow
from flows.driver.session import DriverSession
from flows.phases.finishing import AttemptDeadline
from yatt_core.counting import many
from yatt_core.protocols.receipts import EvaluateReceipt

log = logging.getLogger("yatt_core.flow")
EVALUATED = "evaluated"
"""The name of the choice that says which tasks an evaluation is about, if not about all."""


def answer_held_out(session: DriverSession, iteration: int) -> EvaluateReceipt:
    """Returns the results of an iteration's evaluation."""
    context = session.context
    total = session.start.inputs.held_out_prompts
    finish = AttemptDeadline.start(context.spec.evaluation.deadline, total, context.clock)
    chosen = context.ledger.records.choices(context.run, context.branch, iteration).get(EVALUATED)
    if finish.spec is None or chosen is not None:
        only = None if chosen is None else chosen.body["rows"]
        return session.actors.evaluate(context.run, iteration, total, only)
    receipt = session.actors.evaluate(
        run=context.run, iteration=iteration, held_out=total, only=None, allows=finish.allows
    )
    if len(receipt.rows) < total:
        body = {"rows": list(receipt.rows), "of": total}
        context.ledger.records.choice(context.fence, ChoiceRow(context.branch, iteration, EVALUATED, body))
        answered = many(total, "task", "are answered", "is answered")
        said = f"iteration {iteration}: the time of its evaluation is over; {len(receipt.rows)} of {answered}"
        log.warning("%s", said)
        context.observer.warned(said)
    return receipt
