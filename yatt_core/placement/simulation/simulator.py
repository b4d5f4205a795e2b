"""An iteration's collect phase in simulated time: engines, dispatcher, waves and switches of the cost model.

Consumes a setting, the work of waves, and the runtime policy that acts on the pool. Produces when each sample was
rolled out and judged, and the engines' work. The result is exact: between two changes of an engine's batch, its
time has a closed form.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.placement.actions import (
    JUDGE,
    ROLLOUT,
    Action,
    HandOver,
    Intake,
    Switch,
    Take,
    action_line,
    ahead_of_dispatch,
)
from yatt_core.placement.moments import Moment
from yatt_core.placement.seen import RuntimePolicy, Setting
from yatt_core.placement.simulation.instance import Doing, Instance, Request, Sample, SimulatedSequence
from yatt_core.placement.work import WaveWork

# Among events at the same instant, completed switches come first.
_SWITCHED, _TICK, _BOUNDARY, _RETURN = range(4)


Entry = tuple[float, int, int]
"""An instance that may have room: outstanding / speed, index, and stamp; void if the stamp is outdated."""


class IterationTooLongError(Exception):
    """Raised if an iteration takes longer than the caller's limit."""


class Pool:
    """The instances of one iteration and the pending events. Times are seconds since the start of the iteration.

    longest_s: the simulation is aborted if the iteration takes longer.
    """

    def __init__(
        self,
        setting: Setting,
        runtime_policy: RuntimePolicy,
        log: Callable[[dict[str, Any]], None] | None = None,
        longest_s: float = math.inf,
    ) -> None:
        self._longest = longest_s
        self.setting = setting
        self.instances = [Instance(index, speed) for index, speed in enumerate(setting.speeds)]
        self.now = self.judging_s = 0.0
        self.queues: dict[str, deque[Request]] = {ROLLOUT: deque(), JUDGE: deque()}
        self._waiting = {ROLLOUT: 0, JUDGE: 0}
        self.submitted = self.unrolled = self.unjudged = 0
        self._runtime_policy = runtime_policy
        self._log = log
        self._constants = {ROLLOUT: setting.rollout, JUDGE: setting.judge}
        self._ready: dict[str, list[Entry]] = {ROLLOUT: [], JUDGE: []}
        self._events: list[tuple[float, int, int, Any]] = []
        self._number = 0

    # -- an iteration ------------------------------------------------------------------------------------------------

    def start(self, roles: str, before: str | None) -> None:
        """Assigns a role to every instance; those that had another role in the iteration before join late, lent ones too."""
        if len(roles) != len(self.instances) or set(roles) - {ROLLOUT, JUDGE}:
            raise ConfigurationError(f"roles {roles!r}: expected {len(self.instances)} letters, each R or J")
        for instance, role in zip(self.instances, roles, strict=True):
            changed = before is not None and before[instance.index] != role
            switching_s = self.setting.switch.repartition_s if changed else 0.0
            if instance.index < self.setting.lent and self.setting.lent_after_s != 0.0:
                self._keep(instance, role, switching_s)
            elif changed:
                instance.joining = role
                self._push(switching_s, _SWITCHED, instance)
            else:
                self._serve(instance, role)

    def _keep(self, instance: Instance, role: str, switching_s: float) -> None:
        """Leaves an instance out while the trainer works on its device. switching_s: of its change of role meanwhile."""
        instance.role = role
        if self.setting.lent_after_s is not None:
            self._push(max(self.setting.lent_after_s, switching_s), _SWITCHED, instance)

    def run_wave(self, work: WaveWork) -> list[Sample]:
        """Simulates a wave until its last judgement, at `now`; returns its samples. Raises `IterationTooLongError`."""
        started = self.now
        samples = [Sample(sample) for sample in work.samples]
        self.submitted = self.unrolled = self.unjudged = len(samples)
        for sample in samples:
            self._enqueue(ROLLOUT, self._request(sample))
        self._act(Moment.WAVE)
        ticks = 1
        self._push(started + self.setting.control_period_s, _TICK, None)
        while self.unjudged:
            self.now, kind, _, subject = heappop(self._events)
            if self.now > self._longest:
                raise IterationTooLongError
            if kind == _BOUNDARY:
                if subject.doing is not Doing.IDLE and subject.ends == self.now:
                    self._boundary(subject)
            elif kind == _RETURN:
                self._return_from_tool(*subject)
            elif kind == _SWITCHED:
                self._end_switches(subject)
            else:
                ticks += 1
                self._push(started + ticks * self.setting.control_period_s, _TICK, None)
                self._act(Moment.TICK)
                if len(self._events) == 1:
                    self._refuse_standstill()
        self.judging_s += self.now - max(sample.rolled_out_at for sample in samples)
        self._events = [event for event in self._events if event[1] == _SWITCHED]
        heapify(self._events)
        return samples

    def _refuse_standstill(self) -> None:
        """Raises `ConfigurationError`; called if only control periods are left, so that nothing can happen any more."""
        waiting = ", ".join(f"{len(queue)} units for {role}" for role, queue in self.queues.items() if queue)
        raise ConfigurationError(
            f"at {self.now:g} s the placement is stuck: {waiting} wait, and no instance takes them"
        )

    def waiting(self, role: str) -> int:
        """Returns the number of sequences that wait for an instance of the role."""
        return self._waiting[role]

    def _request(self, sample: Sample) -> Request:
        work = sample.work
        tokens = 0 if self.setting.rollout.prefix_cache and not work.first else work.prompt
        return Request(tokens, (SimulatedSequence(sample, 0, work.turns[0], work.prompt),))

    def _judge_request(self, sample: Sample) -> Request:
        work = sample.work
        judge = self.setting.judge
        read = work.read
        if read is None:
            read = work.prompt + work.response + self.setting.tool_tokens * (len(work.turns) - 1)
        context = read + judge.template_tokens
        tokens = read if judge.prefix_cache else context * len(work.judge)
        return Request(
            tokens, tuple(SimulatedSequence(sample, n, length, context) for n, length in enumerate(work.judge))
        )

    # -- events ------------------------------------------------------------------------------------------------------

    def _push(self, time: float, kind: int, subject: Any) -> None:
        self._number += 1
        heappush(self._events, (time, kind, self._number, subject))

    def _boundary(self, instance: Instance) -> None:
        before = instance.outstanding
        drained = False
        for stream in instance.reach_boundary():
            if instance.role == ROLLOUT:
                drained |= self._end_turn(instance, stream)
            else:
                self._end_judgement(instance, stream)
        if instance.evict:
            self._put_back(instance.role, instance.evicted())
        # If no sequence has left, none can join and nothing new waits.
        if instance.outstanding != before:
            self._restamp(instance)
            self._dispatch(instance)
        else:
            self._begin(instance)
        if drained:
            self._act(Moment.DRAINED)

    def _begin(self, instance: Instance) -> None:
        if instance.doing is Doing.IDLE and instance.begin(self.now):
            self._push(instance.ends, _BOUNDARY, instance)

    def _end_turn(self, instance: Instance, stream: SimulatedSequence) -> bool:
        """Ends a turn by calling a tool or the judge; returns True if it was the wave's last rollout."""
        sample = stream.sample
        if stream.number < len(sample.work.waits):
            self._push(self.now + sample.work.waits[stream.number], _RETURN, (instance, stream))
            return False
        instance.outstanding -= 1
        sample.rolled_out_at = self.now
        self.unrolled -= 1
        if sample.work.judge:
            self._enqueue(JUDGE, self._judge_request(sample))
        else:
            # There are no judgements to make.
            self._end_judging(sample)
        return self.unrolled == 0

    def _end_judgement(self, instance: Instance, stream: SimulatedSequence) -> None:
        instance.outstanding -= 1
        stream.sample.open -= 1
        if stream.sample.open == 0:
            self._end_judging(stream.sample)

    def _end_judging(self, sample: Sample) -> None:
        sample.judged_at = self.now
        self.unjudged -= 1

    def _return_from_tool(self, instance: Instance, stream: SimulatedSequence) -> None:
        stream.number += 1
        stream.left = stream.sample.work.turns[stream.number]
        stream.context += self.setting.tool_tokens
        if instance.migrating:
            instance.outstanding -= 1
            self._put_back(ROLLOUT, [Request(stream.context, (stream,))])
            self._restamp(instance)
            self._dispatch()
        else:
            instance.pending.append(Request(self.setting.tool_tokens, (stream,)))
            self._stop_at_boundary(instance)
            self._begin(instance)

    def _end_switches(self, first: Instance) -> None:
        """Applies all switches that end at this instant before the policy acts or anything is dispatched."""
        ended = [first]
        while self._events and self._events[0][:2] == (self.now, _SWITCHED):
            ended.append(heappop(self._events)[3])
        lent = any(not instance.joining for instance in ended)
        for instance in ended:
            self._serve(instance, instance.joining or instance.role)
        self._act(Moment.SWITCHED)
        if lent and self.unjudged and not self.unrolled:
            # Those that join now have missed that the wave's last rollout has finished.
            self._act(Moment.DRAINED)

    # -- dispatching -------------------------------------------------------------------------------------------------

    def _enqueue(self, role: str, request: Request) -> None:
        """Appends a request to the end of the queue."""
        self.queues[role].append(request)
        self._waiting[role] += len(request.streams)

    def _put_back(self, role: str, requests: Sequence[Request]) -> None:
        """Puts requests at the head of the queue, in their order."""
        self.queues[role].extendleft(reversed(requests))
        self._waiting[role] += sum(len(request.streams) for request in requests)

    def _restamp(self, instance: Instance) -> None:
        """Records that an instance's load, limit or readiness changed; starts its switch once it is empty."""
        instance.stamp += 1
        if instance.leaving:
            if not instance.outstanding:
                self._begin_switch(instance, instance.leaving)
        elif instance.ready:
            entry = (instance.outstanding / instance.speed, instance.index, instance.stamp)
            heappush(self._ready[instance.role], entry)

    def _dispatch(self, *idle: Instance) -> None:
        """Assigns the head of each queue to the least loaded instance with room, then starts the idle ones."""
        idle_now = list(idle)
        for role, queue in self.queues.items():
            if queue:
                self._dispatch_queue(role, idle_now)
        for instance in idle_now:
            self._begin(instance)

    def _dispatch_queue(self, role: str, idle: list[Instance]) -> None:
        queue = self.queues[role]
        ready = self._ready[role]
        aside: list[Entry] = []
        while queue and ready:
            _, index, stamp = ready[0]
            instance = self.instances[index]
            if stamp != instance.stamp:
                heappop(ready)
            elif instance.admits(size := len(queue[0].streams)):
                instance.admit(queue.popleft())
                self._waiting[role] -= size
                self._restamp(instance)
                self._stop_at_boundary(instance)
                idle.append(instance)
            else:
                # A full instance returns when its load changes; a smaller unit than this one may still fit.
                entry = heappop(ready)
                if instance.admits(1):
                    aside.append(entry)
        for entry in aside:
            heappush(ready, entry)

    def _stop_at_boundary(self, instance: Instance) -> None:
        if instance.stop_at_boundary(self.now):
            self._push(instance.ends, _BOUNDARY, instance)

    # -- actions -----------------------------------------------------------------------------------------------------

    def _act(self, moment: Moment) -> None:
        actions = self._runtime_policy.act(moment, self)
        if moment is Moment.SWITCHED:
            ahead, actions = ahead_of_dispatch(actions)
            self._apply(ahead)
            self._dispatch()
        self._apply(actions)
        self._dispatch()

    def _apply(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if self._log is not None:
                self._log({"t": self.now, **action_line(action)})
            instance = self.instances[action.instance]
            match action:
                case Switch():
                    self._check(instance, action, not instance.outstanding)
                    self._begin_switch(instance, action.role)
                case HandOver():
                    self._check(instance, action, True)
                    instance.leaving = action.role
                    instance.migrating = action.migrate
                    if action.migrate:
                        instance.evict = instance.outstanding
                    self._restamp(instance)
                case Take():
                    instance.evict += action.count
                case Intake():
                    instance.intake = action.limit
                    self._restamp(instance)
            if instance.evict:
                self._evict(instance)

    def _check(self, instance: Instance, action: Switch | HandOver, possible: bool) -> None:
        if not (possible and instance.ready and not instance.leaving and action.role != instance.role):
            raise ConfigurationError(
                f"at {self.now:g} s: {action}: the instance has role {instance.role}, {instance.outstanding} outstanding, "
                f"ready: {instance.ready}, leaving: {bool(instance.leaving)}"
            )

    def _evict(self, instance: Instance) -> None:
        if instance.doing is Doing.IDLE:
            self._put_back(instance.role, instance.evicted())
            self._restamp(instance)
        else:
            self._stop_at_boundary(instance)

    def _begin_switch(self, instance: Instance, role: str) -> None:
        instance.ready = False
        instance.leaving = ""
        instance.joining = role
        instance.stamp += 1
        self._push(self.now + self.setting.switch.role_s, _SWITCHED, instance)

    def _serve(self, instance: Instance, role: str) -> None:
        instance.serve(role, self._constants[role])
        self._restamp(instance)
