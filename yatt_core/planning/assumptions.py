"""What a plan assumes because spec, cards and telemetry do not contain it: lengths, efficiencies, runtime memory.

The assumptions used are printed with the plan (`assumed_lines`); lengths and the training efficiency can be set.
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
        """Returns the mean of the lengths after truncation at `longest`: E[min(X, c)] of a log-normal X."""
        if not self.sigma:
            return min(self.median, float(longest))
        mu = math.log(self.median)
        limit = math.log(longest)
        below = _normal((limit - mu - self.sigma**2) / self.sigma)
        return math.exp(mu + self.sigma**2 / 2) * below + longest * (1.0 - _normal((limit - mu) / self.sigma))

    def __str__(self) -> str:
        return f"{self.median:.4g}:{self.sigma:.2g}"


def _normal(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def parse_spread(text: str, option: str) -> Spread:
    """Parses MEDIAN or MEDIAN:SIGMA. Raises `ConfigurationError` naming the option."""
    median, _, sigma = text.partition(":")
    try:
        spread = Spread(float(median), float(sigma or 0.5))
    except ValueError:
        spread = Spread(0.0, 0.0)
    if not (1.0 <= spread.median < 1e9 and 0.0 <= spread.sigma <= 5.0):
        raise ConfigurationError(
            f"{option} {text}: expected MEDIAN:SIGMA, a median of at least 1 token and a sigma of the logarithm from 0 to 5, "
            "such as 800:0.7"
        )
    return spread


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of a plan; times are in seconds.

    prompt, response, judge: lengths of prompts, responses and judgements. None: those that a virtual engine
        generates; without one, they are derived from the spec's limits and the fields `*_share` and `*_sigma`.
    own_vocabulary: vocabulary of a tokenizer that is yet to be trained.
    training_mfu, prefill_mfu: fraction of the card's operations per second that training and prefill reach.
    bandwidth_share: fraction of the memory bandwidth that decoding reaches.
    sequence_share: fraction of a prompt token's time that each sequence adds to a decode step.
    reduce_latency_s: latency of an all-reduce of any size, per doubling of the devices.
    engine_runtime, train_runtime, asleep_runtime: bytes that a process takes on a device in addition to tensors.
    core_runtime: bytes that the process of an engine or rank takes on a core in addition to tensors.
    torch_step_s: time per layer to dispatch a decode step of the torch engine.
    wake_fixed_s: time of a switch in addition to copying weights.
    step_fixed_s: fixed time of an optimizer step, for all trainers except torch.
    between_failures_s: mean time between failures that lose the trainer's tensors.
    response_correlation: correlation of the logarithms of the response lengths in a group.
    response_share, prompt_share, judge_share: median lengths as fractions of the spec's limits.
    response_sigma, prompt_sigma, judge_sigma: standard deviations of the logarithms of the lengths.
    tool_wait_s: duration of a tool call.
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
