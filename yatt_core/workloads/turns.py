"""An iteration's turn to draw, as trainer and samplers make it from the task that the driver gives them.

Consumes a spec, the key of a piece of work, and the number of the draw. Produces the `Draw` of the contract.
"""

from __future__ import annotations

from yatt_core.keys import WorkKey, stable_seed
from yatt_core.spec.run import RunSpec
from yatt_core.workloads.contract import Draw


def turn_of(spec: RunSpec, key: WorkKey, number: int) -> Draw:
    """Returns the turn of an iteration, whose seed is another one on each branch. number: counts the draws."""
    branch = key.branch
    seed = stable_seed("workload.branch", spec.seed, branch) if branch else spec.seed
    return Draw(seed=seed, iteration=key.iteration, number=number)
