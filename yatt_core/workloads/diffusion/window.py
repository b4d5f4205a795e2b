"""Which steps of a trajectory are stochastic, and learnt from.

Flow-GRPO has noise in every step. MixGRPO (arXiv 2507.21802) has it in a window of a few steps, which moves from the noise
towards the image while training goes on; all others are taken straight and cost no backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The stochastic steps as a function of the iteration.

    size: number of stochastic steps.
    interval: iterations after which the window moves; 0 keeps it at the first steps.
    stride: steps by which it moves, until its end is the last step that may be stochastic.
    """

    size: int
    interval: int = 0
    stride: int = 1

    def at(self, iteration: int, steps: int) -> range:
        """Returns the stochastic steps, counted from 0, of an iteration, counted from 1.

        steps: those that may be stochastic. Raises `ValueError` if the window is larger.
        """
        if self.size > steps:
            raise ValueError(f"a window of {self.size} steps does not fit into {steps} that may be stochastic")
        moved = (iteration - 1) // self.interval * self.stride if self.interval else 0
        first = min(moved, steps - self.size)
        return range(first, first + self.size)
