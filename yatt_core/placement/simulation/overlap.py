"""How long whole iterations take if generation and learning overlap: commits by lag, streamed learning, shared devices.

Consumes the seconds of collect and of learning of each iteration. Produces the seconds at which each iteration is
committed. All costs are those of the cost model: training takes a fixed time and a time per token and device; a trainer
that shares its devices with the engines pays for the switch to it and back; one with devices of its own pays, before
each commit, half of that switch, the way on which weights come to an engine. Units: seconds, tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yatt_core.placement.simulation.token_times import ReadyGroup
from yatt_core.placement.workload import Scenario


@dataclass(frozen=True, slots=True)
class Learner:
    """The cost of learning. fixed_s: of the optimizer step. token_s: of a token's preparation and gradients."""

    fixed_s: float
    token_s: float

    def seconds(self, tokens: int) -> float:
        """Returns the seconds of learning from this many tokens."""
        return self.fixed_s + self.token_s * tokens


def learner_on(workload: Scenario, devices: int) -> Learner:
    """Returns the cost of learning on this many devices."""
    training = workload.training
    return Learner(training.fixed_s, training.device_seconds_per_token / devices)


def sync_seconds(workload: Scenario) -> float:
    """Returns the seconds for which engines stop to take the weights of a trainer that has devices of its own."""
    return workload.switch.train_s / 2


def shared_seconds(workload: Scenario, collect_s: float, tokens: int) -> float:
    """Returns the seconds of an iteration whose trainer and engines have the same devices in turn."""
    learner = learner_on(workload, workload.cluster.devices)
    return collect_s + workload.switch.train_s + learner.seconds(tokens)


def commits(collect_s: Sequence[float], learn_s: Sequence[float], lag: int, sync_s: float) -> list[float]:
    """Returns when each iteration is committed, if trainer and engines have devices of their own.

    While the trainer learns from iteration k, the engines collect iteration k + lag under the weights of commit k - 1;
    when both have ended, weights are sent, and k is committed. The first `lag` iterations are collected before that,
    under the first weights. Without lag the trainer waits for the iteration to be collected.
    """
    now = sum(collect_s[:lag])
    ends: list[float] = []
    for number, learning in enumerate(learn_s):
        collecting = collect_s[number + lag] if number + lag < len(collect_s) else 0.0
        now += (max(collecting, learning) if lag else collecting + learning) + sync_s
        ends.append(now)
    return ends


def streamed_seconds(groups: Sequence[ReadyGroup], learner: Learner) -> float:
    """Returns when the optimizer step over all groups has ended, if gradients are taken in their order as they come."""
    now = 0.0
    for group in groups:
        now = max(now, group.known_s, group.judged_s) + learner.token_s * group.tokens
    return now + learner.fixed_s
