"""What a plan takes for granted where neither spec, cards nor telemetry tell: lengths, efficiencies, the runtime's memory.

What a plan uses of it is printed with the plan (`assumed_lines`); lengths and the training's efficiency can be given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from yatt_core.errors import ConfigurationError
from yatt_core.planning.account import GIB


@dataclass(frozen=True, slots=True)
class Spread:
    """Log-normal lengths in tokens."""

    median: float
    sigma: float

    def mean(self, longest: int) -> float:
        """Of lengths that are cut at the longest one: E[min(X, c)] of a log-normal X."""
        if not self.sigma:
            return min(self.median, float(longest))
        mu, limit = math.log(self.median), math.log(longest)
        below = _normal((limit - mu - self.sigma**2) / self.sigma)
        return math.exp(mu + self.sigma**2 / 2) * below + longest * (1.0 - _normal((limit - mu) / self.sigma))

    def __str__(self) -> str:
        return f"{self.median:.4g}:{self.sigma:.2g}"


def _normal(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def parse_spread(text: str, option: str) -> Spread:
    """MEDIAN or MEDIAN:SIGMA. Raises `ConfigurationError` that names the option."""
    median, _, sigma = text.partition(":")
    try:
        spread = Spread(float(median), float(sigma or 0.5))
    except ValueError:
        spread = Spread(0.0, 0.0)
    if not (1.0 <= spread.median < 1e9 and 0.0 <= spread.sigma <= 5.0):
        raise ConfigurationError(
            f"{option} {text}: write MEDIAN:SIGMA, a median of at least 1 token and a sigma of the logarithm of 0 to 5, "
            "such as 800:0.7"
        )
    return spread


@dataclass(frozen=True, slots=True)
class Assumptions:
    """prompt, response, judge: lengths; None: those of a virtual engine, else a share of the spec's limits. own_vocabulary: of a
    tokenizer yet to be trained.

    training_mfu: share of the card's operations that training reaches. prefill_mfu, bandwidth_share: the same of prefill, and of
    the memory's bandwidth in decoding. sequence_share: of a prompt token's time that a sequence adds to a decode step.
    reduce_latency_s: of an all-reduce, however little it moves, for each doubling of the devices. engine_runtime, train_runtime,
    asleep_runtime: bytes of a process on a device besides tensors; core_runtime: on a core, of an engine or a rank. torch_step_s:
    a decode step's dispatch by a layer of the torch engine. wake_fixed_s: of a switch, besides copying weights. step_fixed_s: of
    an optimizer step of a trainer that is not torch. between_failures_s: time. response_correlation: of the lengths in a group.
    response_share, prompt_share, judge_share: median lengths, of the spec's limits. response_sigma, prompt_sigma, judge_sigma:
    their spread. tool_wait_s: of a call.
    """

    prompt: Spread | None = None
    response: Spread | None = None
    judge: Spread | None = None
    own_vocabulary: int = 4096
    training_mfu: float = 0.35
    prefill_mfu: float = 0.5
    bandwidth_share: float = 0.75
    sequence_share: float = 0.5
    reduce_latency_s: float = 6e-6
    engine_runtime: int = 3 * GIB
    train_runtime: int = 3 * GIB
    asleep_runtime: int = GIB
    core_runtime: int = 3 * GIB // 4
    torch_step_s: float = 4e-4
    wake_fixed_s: float = 2.0
    step_fixed_s: float = 1.0
    between_failures_s: float = 24 * 3600.0
    response_correlation: float = 0.5
    response_share: float = 0.25
    prompt_share: float = 0.5
    judge_share: float = 0.5
    response_sigma: float = 0.6
    prompt_sigma: float = 0.5
    judge_sigma: float = 0.4
    tool_wait_s: float = 1.0
