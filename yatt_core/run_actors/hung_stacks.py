"""Keeps the stacks of actors that hang before they are ended, in the run's folder on the driver's disk.

Consumes actors with their processes; produces a file for each, named by iteration, phase and actor. Each actor's stacks are
taken on its own node (`yatt_core.fault_stacks`). Whatever fails here is written in place of the stacks: it must not keep
the driver from ending the actors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from yatt_core.cluster.gcs import place_of_actor
from yatt_core.cluster.metering import Interruptions
from yatt_core.cluster.nodes import on_node
from yatt_core.errors import InfrastructureError
from yatt_core.fault_stacks import KEPT, dump_stacks, prune_kept
from yatt_core.logs import current_context

log = logging.getLogger(__name__)
AT_ONCE = 16
"""Maximum number of actors whose stacks are taken together; of ranks that hang alike, some tell the story."""
WAIT_SECONDS = 40.0


def keep_stacks(run_folder: Path, actors: Mapping[str, str], interruptions: Interruptions) -> list[Path]:
    """Writes the stacks of actors that hang; returns the files, relative to the run's folder.

    actors: Ray's ids by name.
    """
    chosen = dict(list(actors.items())[:AT_ONCE])
    texts = _dumped(run_folder, chosen, interruptions)
    context = current_context()
    prefix = f"i{context.get('iteration', 'x')}.{context.get('phase', 'start')}"
    written = []
    try:
        (run_folder / KEPT).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = KEPT / f"{prefix}.{name}.{int(time.time())}.txt"
            (run_folder / path).write_text(text, encoding="utf-8")
            written.append(path)
        prune_kept(run_folder)
    except OSError as error:
        log.warning("the stacks of actors that hang are not kept: %s", error)
    return written


def _dumped(run_folder: Path, actors: Mapping[str, str], interruptions: Interruptions) -> dict[str, str]:
    """Returns each actor's stacks, or why there are none."""
    task: Any = ray.remote(num_cpus=0, max_retries=0)(dump_stacks)
    texts = {name: f"{name}: its node did not answer within {WAIT_SECONDS:g} s" for name in actors}
    asked: dict[Any, str] = {}
    with interruptions.shielded():
        for name, actor_id in actors.items():
            try:
                node, pid = place_of_actor(actor_id)
                if not pid:
                    texts[name] = f"{name}: it has no process"
                    continue
                placed = task.options(scheduling_strategy=on_node(node))
                asked[placed.remote(str(run_folder), name, pid)] = name
            except (InfrastructureError, ray.exceptions.RayError) as error:
                texts[name] = f"{name}: its process could not be found: {error}"
        texts |= _answers(asked)
    return texts


def _answers(asked: Mapping[Any, str]) -> dict[str, str]:
    if not asked:
        return {}
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=WAIT_SECONDS)
    found = {}
    for reference in done:
        name = asked[reference]
        try:
            found[name] = str(ray.get(reference))
        except ray.exceptions.RayError as error:
            found[name] = f"{name}: its node could not take the stacks: {error}"
    return found
