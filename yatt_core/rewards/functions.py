"""A part's function, ready to be called: in this process, or in the reward process.

Functions of YATT that take time linear in a response's length run in this process. All others run in the reward
process, where they cannot harm this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yatt_core.rewards.calls import Call, Limits, Outcome, made
from yatt_core.rewards.code_files import read_code
from yatt_core.rewards.conventions import RewardFunction, Unit
from yatt_core.rewards.process import Loaded, reward_process
from yatt_core.rewards.registry import FunctionName, is_linear, resolve
from yatt_core.spec.rewards.scheme import FunctionPart


@dataclass(frozen=True, slots=True)
class PartFunction:
    """The function of a part."""

    part: FunctionPart
    function: RewardFunction | Loaded

    @property
    def unit(self) -> Unit:
        """What must be complete before the function is called.

        Calls of coroutine functions are made together, once the whole batch is complete.
        """
        return "batch" if self.function.awaits else self.function.unit

    def evaluate(self, calls: Sequence[Call]) -> list[list[Outcome]]:
        """Returns the outcomes of each call; none for calls after a failure that stops the run.

        Raises `InfrastructureError` if a service that the function needs is away.
        """
        limits = Limits(self.part.timeout_seconds, self.part.weight, self.part.concurrency)
        if isinstance(self.function, RewardFunction):
            return [made(self.function, call, limits.weight) for call in calls]
        return reward_process().evaluate(self.function, calls, limits, self.part.on_error == "stop")


def load_part(part: FunctionPart, run_folder: Path | None = None) -> PartFunction:
    """Looks up, imports and checks the function of a part.

    run_folder: folder of the run, which has its own copies of files; None before there is a run.

    Raises `ConfigurationError` as `registry.resolve` does; raises as `read_code` does for a file.
    """
    place = f"rewards.parts {part.name!r}: {part.described}"
    if part.function is not None:
        name = FunctionName(place, part.function, part.options)
    else:
        path, data = read_code(part, run_folder)
        name = FunctionName(place, part.attribute, part.options, str(path), data.decode("latin-1"))
    return PartFunction(part, resolve(name) if is_linear(name) else reward_process().load(name))
