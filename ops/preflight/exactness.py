"""Whether a run repeats its bits, as far as its spec and this machine tell: a part of `yatt check`. Consumes a spec."""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.input_building.engine_check import asked_when_opened, exact_obstacles_here
from yatt_core.spec import RunSpec

ALIGNED = (
    "aligned: the trainer computes the sampler's log-probabilities to the last bit; no update is made if one differs"
)
ASKED = (
    "exact on GPUs: {} is opened in vLLM's batch-invariant mode and asked whether answers have the same bits alone and in a "
    "crowd; if not, the start ends with an error"
)


@dataclass(frozen=True, slots=True)
class Exactness:
    """Whether a run will be exact.

    obstacles: why it could not be; empty if it can.
    asked: the places of the spec whose engines alone can tell, once they are open.
    aligned: whether trainer and sampler must compute the same log-probabilities.
    """

    holds: bool
    obstacles: tuple[str, ...]
    asked: tuple[str, ...] = ()
    aligned: bool = False

    @classmethod
    def of(cls, spec: RunSpec) -> Exactness:
        """Asks the spec and, unless the engines run on a cluster that exists already, this machine's devices."""
        from flows.driver.attachment import attached

        elsewhere = attached()
        unknown = () if spec.must_be_exact else spec.obstacles_on_processors()
        obstacles = (*spec.exact_obstacles(), *(unknown if elsewhere else exact_obstacles_here(spec)))
        holds = spec.exact is not False and not obstacles
        asked = asked_when_opened(spec) if holds and not elsewhere else ()
        return cls(holds=holds, obstacles=obstacles, asked=asked, aligned=spec.aligned)

    @property
    def lines(self) -> list[str]:
        """What to say of a run that is exact; of others, a remark says why they are not."""
        if not self.holds:
            return []
        said = ["exact: however often it is killed and resumed, the run ends with the bits of an undisturbed one"]
        if self.asked:
            said.append(ASKED.format(" and ".join(self.asked)))
        return [*said, ALIGNED] if self.aligned else said
