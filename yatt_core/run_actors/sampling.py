"""Has an iteration's shards sampled: divides them over the samplers and waits for all.

Consumes a task that names the iteration; produces references to its sealed shards. A lost sampler ends the attempt: what has been
sealed is found again by the next one, whichever samplers there are then.
"""

from __future__ import annotations

from dataclasses import replace

from yatt_core.protocols.receipts import SampleTask, ShardRef
from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.instances import ROLLOUT


def sample(calls: ActorCalls, task: SampleTask) -> tuple[ShardRef, ...]:
    """Returns an iteration's sealed shards, in their order.

    Raises `InfrastructureError` if a sampler is lost, and any exception that one has raised.
    """
    samplers = calls.registry.of(ROLLOUT)
    names = calls.registry.names_of(ROLLOUT)
    (count,) = calls.get([samplers[0].count_shards.remote(task)], "the number of shards", names[:1])
    tasks = [replace(task, key=replace(task.key, shard=number)) for number in range(count)]
    working = range(min(len(samplers), count))
    asked = {samplers[place].sample.remote(task.term, tasks[place :: len(samplers)]): names[place] for place in working}
    answers = calls.get_from_group(asked, "the samplers to draw an iteration")
    sealed = {
        number: shard
        for place, shards in zip(working, answers, strict=True)
        for number, shard in zip(range(place, count, len(samplers)), shards, strict=True)
    }
    return tuple(sealed[number] for number in range(count))
