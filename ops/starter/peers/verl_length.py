"""How many iterations a run of verl has, by passes over the rows, by steps, or by both.

Consumes a draft with verl's keys, and options. Writes into the draft. Raises `ConfigurationError`.

verl goes `trainer.total_epochs` times over the rows and ends early after `trainer.total_training_steps`, so that the smaller of
both counts. The schedule of the learning rate stretches over `total_training_steps`, whichever ends the run.
"""

from __future__ import annotations

from ops.starter.peers import common
from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions
from ops.starter.peers.verl_learning import schedule
from yatt_core.counting import many

STEPS = "trainer.total_training_steps"
PASSES = "trainer.total_epochs"


def write_length(draft: Draft, options: TranslationOptions, prefix: str) -> None:
    """Writes the number of iterations, and the schedule of the learning rate over them.

    prefix: of the optimizer's keys.
    """
    if draft[STEPS] is None:
        total = _in_passes(draft, common.rows(draft, PASSES, options))
        draft.takes(PASSES, {"iterations": total}, f"{many(draft[PASSES], 'pass')} over the rows")
        schedule(draft, prefix, total, total)
        return
    total = draft.number(STEPS, 1)
    passes = draft.number(PASSES, 1)
    found = options.count_rows(draft.tree["data"]["sources"])
    count = min(total, _in_passes(draft, found)) if found else total
    draft.write("iterations", count)
    if count < total:
        why = f"{PASSES} ends the run earlier, after {count:,}; the schedule of the rate stretches over it there"
        draft.differs(STEPS, why)
        draft.takes(PASSES, {"iterations": count}, f"{many(passes, 'pass')} over the rows")
    else:
        draft.takes(STEPS, {"iterations": total})
        if found:
            draft.takes(PASSES, {}, f"without effect: {STEPS} ends the run earlier")
        else:
            why = (
                f"it ends the run there if {many(passes, 'pass')} over the rows, whose number is not known here, "
                f"{'has' if passes == 1 else 'have'} less than {many(total, 'iteration')}; --rows says it"
            )
            draft.differs(PASSES, why)
    schedule(draft, prefix, total, count)


def _in_passes(draft: Draft, found: int) -> int:
    """Returns the iterations in verl's passes over the rows.

    found: number of rows.
    """
    most = draft.number("data.train_max_samples", -1)
    rows = found if most < 0 else min(found, most)
    return common.epochs(draft.number(PASSES, 1), rows, draft.number("data.train_batch_size", 1))
