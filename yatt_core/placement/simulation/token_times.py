"""When each response of a simulated wave reached each of its tokens, and when each group's turn to be learnt from was known.

Consumes a setting, roles, a runtime policy and a wave. Produces, group by group in the order of learning, the seconds
from which it could be learnt from. Between two moments at which an engine's batch changes, time is taken as linear in
tokens. Units: seconds since the start of the iteration, tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from yatt_core.placement.actions import ROLLOUT
from yatt_core.placement.seen import RuntimePolicy, Setting
from yatt_core.placement.simulation.instance import Doing, Instance, Sample
from yatt_core.placement.simulation.simulator import Pool
from yatt_core.placement.work import WaveWork

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A group in the order of learning.

    longest: tokens of its longest response.
    ordinal: its position in the wave.
    tokens: tokens of its prompts and responses.
    known_s: when it was certain that no other group comes before it.
    judged_s: when its last response was judged.
    """

    longest: int
    ordinal: int
    tokens: int
    known_s: float
    judged_s: float


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Decode steps of a response on an instance. since: the instance's steps before. before: the response's tokens before."""

    instance: int
    since: int
    before: int


class TracedPool(Pool):
    """A pool that notes its rollout engines' decode steps and which response drew which tokens in them."""

    def __init__(self, setting: Setting, runtime_policy: RuntimePolicy) -> None:
        super().__init__(setting, runtime_policy)
        self._blocks: list[list[tuple[float, float, int, int]]] = [[] for _ in self.instances]
        self._stretches: dict[Sample, list[_Stretch]] = defaultdict(list)

    def _boundary(self, instance: Instance) -> None:
        if instance.role == ROLLOUT:
            self._note(instance)
        super()._boundary(instance)

    def _note(self, instance: Instance) -> None:
        """Notes the work that ends now."""
        if instance.doing is Doing.DECODE:
            block = (instance.started, instance.ends, instance.steps, instance.steps + instance.planned)
            self._blocks[instance.index].append(block)
            return
        for request in instance.prefilling:
            for stream in request.streams:
                turns = stream.sample.work.turns
                before = sum(turns[: stream.number + 1]) - stream.left
                self._stretches[stream.sample].append(_Stretch(instance.index, instance.steps, before))

    def reached(self, samples: Sequence[Sample], tokens: Sequence[int]) -> Array:
        """Returns when each sample reached each number of tokens, by sample and number; infinite if it never did."""
        blocks = [np.array(blocks, dtype=np.float64).reshape(-1, 4) for blocks in self._blocks]
        wanted = np.array(tokens, dtype=np.float64)
        times = np.full((len(samples), len(tokens)), np.inf)
        for row, sample in zip(times, samples, strict=True):
            stretches = self._stretches[sample]
            ends = [*(one.before for one in stretches[1:]), sample.work.response]
            for stretch, end in zip(stretches, ends, strict=True):
                here = (wanted > stretch.before) & (wanted <= end)
                row[here] = _times_of(blocks[stretch.instance], wanted[here] - stretch.before + stretch.since)
        return times


def _times_of(blocks: Array, steps: Array) -> Array:
    """Returns when an instance had done each of these numbers of decode steps."""
    started, ended, first, last = blocks.T
    block = np.searchsorted(last, steps)
    share = (steps - first[block]) / (last[block] - first[block])
    return np.asarray(started[block] + share * (ended[block] - started[block]))


def ready_groups(
    setting: Setting, roles: str, runtime_policy: RuntimePolicy, wave: WaveWork, before: str | None
) -> tuple[list[ReadyGroup], float]:
    """Simulates a wave; returns its groups in the order of learning, and the seconds of collect.

    Groups are learnt from by the tokens of their longest response, then by their position. A group is the next one once
    each unfinished group after it has a response with more tokens than it has: nothing else decides it, so that the
    order does not depend on which engine was faster. What waits for a place has no tokens.
    """
    pool = TracedPool(setting, runtime_policy)
    pool.start(roles, before)
    samples = pool.run_wave(wave)
    groups: list[list[int]] = [[] for _ in wave.valid]
    for number, sample in enumerate(samples):
        groups[sample.work.group].append(number)
    longest = [max(samples[number].work.response for number in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda ordinal: (longest[ordinal], ordinal))
    reached = pool.reached(samples, [longest[ordinal] + 1 for ordinal in order])
    passed = np.array([reached[groups[ordinal]].min(axis=0) for ordinal in order])
    ended = np.array([max(samples[number].rolled_out_at for number in groups[ordinal]) for ordinal in order])
    passed = np.minimum(passed, ended[:, None])
    return [
        ReadyGroup(
            longest=longest[ordinal],
            ordinal=ordinal,
            tokens=sum(samples[n].work.prompt + samples[n].work.response for n in groups[ordinal]),
            known_s=float(passed[place + 1 :, place].max(initial=0.0)),
            judged_s=max(samples[n].judged_at for n in groups[ordinal]),
        )
        for place, ordinal in enumerate(order)
    ], pool.now
