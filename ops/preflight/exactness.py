"""Whether a run repeats its bits, as far as its spec and this machine tell: a part of `yatt check`. Consumes a spec."""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.input_building.engine_check import batched_by_chance
from yatt_core.spec import RunSpec

ALIGNED = (
    "aligned: the trainer computes the sampler's log-probabilities to the last bit; no update is made if one differs"
)


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether a run will be exact.

    obstacles: why it could not be; empty if it can.
    aligned: whether trainer and sampler must compute the same log-probabilities.
    """

    holds: bool
    obstacles: tuple[str, ...]
    aligned: bool = False

    @classmethod
    def of(cls, spec: RunSpec) -> Exactness:
        """Asks the spec and, unless the engines run on a cluster that exists already, this machine's devices."""
        from flows.driver.attachment import attached

        by_chance = None if attached() else batched_by_chance(spec)
        obstacles = (*spec.exact_obstacles(), *(() if by_chance is None else (by_chance,)))
        return cls(spec.exact is not False and not obstacles, obstacles, spec.aligned)

    @property
    def lines(self) -> list[str]:
        """What to say of a run that is exact; of others, a remark says why they are not."""
        said = "exact: however often it is killed and resumed, the run ends with the bits of an undisturbed one"
        if not self.holds:
            return []
        return [said, ALIGNED] if self.aligned else [said]
