"""What samplers draw for an iteration of a workload of one's own, shared by the loop and by replay.

A shard that is sealed is kept, whoever has drawn it; the others are drawn from the same seeds and weights, so that their bits are
the same as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from flows.driver.session import DriverSession
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import PromptRef, SampleTask, ShardRef
from yatt_core.tracing.calls import call_term


def sampled_shards(
    session: DriverSession, branch: int, iteration: int, rows: Sequence[PromptRef]
) -> tuple[ShardRef, ...]:
    """Returns the shards of an iteration, all of them sealed. The trainer must hold the weights before its update.

    rows: the draw of the iteration.
    """
    context = session.context
    version = iteration - 1
    session.actors.sync(version)
    (drawn,) = rows
    key = WorkKey(context.run, branch, iteration, "collect")
    task = SampleTask(key=key, term=call_term(context.fence.term), number=drawn.ordinal, version=version)
    return session.actors.sample(task)
