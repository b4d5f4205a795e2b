"""The Ray actor of a virtual instance with continuous batching: it accepts requests while it works on others.

Consumes decode batches and questions to judges from controllers, and the digest of the trainer's weights; produces
responses and verdicts at the times that the placement cost model computes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np

from yatt_core.actors.call_kinds import GENERATE, version_part
from yatt_core.actors.holdings import own_holdings
from yatt_core.actors.presence import Presence
from yatt_core.actors.use_meter import MemoryMeter, ProcessUse
from yatt_core.dispatch.pool import pool_setting
from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.engines.virtual.live import LiveInstance
from yatt_core.engines.virtual.rollout import VirtualRolloutEngine
from yatt_core.judges.virtual import VirtualJudgeEngine
from yatt_core.logs import actor_logs
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.placement.simulation.instance import Request, Sample, SimulatedSequence
from yatt_core.placement.work import SampleWork
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, Int32, Returned
from yatt_core.protocols.judges import JudgeItem, JudgeRequest, Verdict
from yatt_core.protocols.pieces import cut_beginnings, cut_piece
from yatt_core.protocols.receipts import ActorIdentity, SyncReceipt
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import GenerativePart, VirtualJudge
from yatt_core.spec.sections.rollout import VirtualRollout
from yatt_core.spent_time import ENGINE

HOLD_SECONDS = 0.02
"""Results that finish within this time are sent together."""
_NOBODY = Sample(SampleWork(group=0, first=False, prompt=0, turns=(1,), waits=(), judge=()))
"""A placeholder owner of sequences: only the simulator uses the owner."""


class ContinuousActor:
    """One instance of the pool; asynchronous, so that any number of calls can be in progress."""

    def __init__(self, spec_json: str, run_folder: str, instance: int, term: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        engine = self._spec.rollout.engine
        assert isinstance(engine, VirtualRollout)
        self._setting = pool_setting(self._spec)
        self._instance = instance
        self._identity = actor_logs(Path(run_folder), f"rollout-{instance}", term)
        self._presence = Presence(f"rollout-{instance}", term, self._spec.recovery.grace_seconds)
        self._clock = ScaledClock(engine.clock_factor)
        self._engine = VirtualRolloutEngine(engine, self._spec.seed, self._clock)
        self._judges = {
            part.name: VirtualJudgeEngine(part, part.engine, self._clock)
            for part in self._spec.rewards.judges
            if isinstance(part, GenerativePart) and isinstance(part.engine, VirtualJudge)
        }
        self._live = LiveInstance(instance, self._setting.speeds[instance], self._clock)
        self._memory = MemoryMeter()
        self._role = self._started_with = ""
        self._update_began = 0.0

    async def load(self, term: int, model_path: str, resident: bool) -> ActorIdentity:
        """Returns the actor's identity; there is no model to load and no memory to reserve."""
        self._presence.fence.check(term)
        capabilities = {**self._engine.capabilities, "continuous": True}
        return ActorIdentity(
            name=self._identity.name,
            pid=self._identity.pid,
            node=self._identity.node,
            engine=self._spec.rollout.engine.kind,
            capabilities=capabilities,
            holds=own_holdings(),
        )

    async def rest(self, term: int) -> None:
        """Does nothing but check the fence: there is no memory to release."""
        self._presence.fence.check(term)

    async def version(self, term: int) -> int:
        """Returns the version of the engine's weights; -1 while they are undefined."""
        self._presence.fence.check(term)
        return self._engine.version

    async def begin_update(self, term: int, version: int) -> None:
        """Prepares for a new version of the weights."""
        self._presence.fence.check(term)
        self._update_began = time.monotonic()
        self._engine.begin_update(version)

    async def take_digest(self, term: int, digest: str) -> SyncReceipt:
        """Ends the update with the digest of the weights."""
        self._presence.fence.check(term)
        self._engine.take_digest(digest)
        return SyncReceipt(self._instance, self._engine.version, time.monotonic() - self._update_began)

    async def generate(
        self, term: int, request: GenerateRequest, number: int
    ) -> AsyncIterator[GeneratePiece | Returned]:
        """Answers a decode batch, response by response as the instance finishes them.

        number: of the grant by which the call was made.

        Evicted responses are returned unfinished. Raises the same errors as the engine's `generate`.
        """
        self._presence.fence.check(term)
        with self._presence.times.work(GENERATE, version_part(request.weight_version), kind=ENGINE, alone=True):
            async for piece in self._pieces(request):
                yield piece

    async def _pieces(self, request: GenerateRequest) -> AsyncIterator[GeneratePiece | Returned]:
        self._begin_with(ROLLOUT)
        answer = self._engine.answer(request)
        started = time.monotonic()
        left: asyncio.Queue[SimulatedSequence] = asyncio.Queue()
        for work in _requests(request, answer.lengths):
            self._live.submit(work, left.put_nowait)
        missing = len(answer.lengths)
        while missing:
            streams = sorted(await _gathered(left), key=lambda stream: stream.number)
            missing -= len(streams)
            if ended := [stream.number for stream in streams if not stream.left]:
                yield cut_piece(answer, np.array(ended), time.monotonic() - started)
                started = time.monotonic()
            if unfinished := [stream for stream in streams if stream.left]:
                rows = np.array([stream.number for stream in unfinished])
                drawn = np.array([int(answer.lengths[stream.number]) - stream.left for stream in unfinished])
                yield Returned(tuple(rows.tolist()), cut_beginnings(answer, rows, drawn))

    async def judge(self, term: int, part: str, request: JudgeRequest) -> AsyncIterator[tuple[Verdict, ...]]:
        """Judges responses and yields each verdict when its last judgement is done."""
        self._presence.fence.check(term)
        with self._presence.times.work("judge", kind=ENGINE, alone=True):
            async for verdicts in self._verdicts(part, request):
                yield verdicts

    async def _verdicts(self, part: str, request: JudgeRequest) -> AsyncIterator[tuple[Verdict, ...]]:
        self._begin_with(JUDGE)
        ended: asyncio.Queue[SimulatedSequence] = asyncio.Queue()
        verdicts = {item.number: self._submit_item(part, item, ended) for item in request.items}
        open_judgements = {number: len(verdict.judgements) for number, verdict in verdicts.items()}
        while verdicts:
            done = []
            for stream in await _gathered(ended):
                open_judgements[stream.number] -= 1
                if not open_judgements[stream.number]:
                    done.append(verdicts.pop(stream.number))
            if done:
                yield tuple(done)

    def _submit_item(self, part: str, item: JudgeItem, ended: asyncio.Queue[SimulatedSequence]) -> Verdict:
        """Submits an item as one request, whose text is read once for all of its judgements."""
        verdict = self._judges[part].verdict(item)
        read = verdict.judgements[0].prompt_tokens
        streams = tuple(SimulatedSequence(_NOBODY, item.number, one.tokens, read) for one in verdict.judgements)
        self._live.submit(Request(read, streams), ended.put_nowait)
        return verdict

    async def evict(self, term: int, count: int) -> None:
        """Evicts the newest `count` sequences at the next boundary; their calls yield them unfinished."""
        self._presence.fence.check(term)
        self._live.evict(count)

    async def switch(self, term: int, role: str, starting: bool) -> None:
        """Switches to another role, which takes as long as the cost model says.

        starting: whether this role begins an iteration; the switch is then free if the previous iteration
            began with the same role.
        """
        self._presence.fence.check(term)
        if not starting:
            seconds = self._setting.switch.role_s
        else:
            seconds = 0.0 if self._started_with in ("", role) else self._setting.switch.repartition_s
            self._started_with = role
        await asyncio.sleep(self._clock.real_seconds(seconds))
        self._serve(role)

    async def usage(self, term: int) -> tuple[Usage, ...]:
        """Returns the work done since the last call."""
        self._presence.fence.check(term)
        return self._live.usage()

    async def process_use(self, term: int) -> ProcessUse:
        """Returns what the process holds; there is no device."""
        self._presence.fence.check(term)
        return ProcessUse(None, self._memory.read(), self._presence.times.take())

    def _begin_with(self, role: str) -> None:
        """Takes the role of the first request if none is assigned yet, as after the replacement of a dead instance."""
        if not self._role:
            self._serve(role)

    def _serve(self, role: str) -> None:
        """Takes a role, with the cost constants that the placement policy uses."""
        self._role = role
        self._live.serve(role, self._setting.judge if role == JUDGE else self._setting.rollout)


def _requests(request: GenerateRequest, lengths: Int32) -> Iterator[Request]:
    """Yields one cost-model request per response; the tokens that a continued response already has are read again."""
    samples = request.seeds.shape[1]
    for row, length in enumerate(lengths.tolist()):
        prompt = len(request.prompts[row // samples])
        made = 0 if request.begun is None else int(request.begun.lengths[row])
        stream = SimulatedSequence(_NOBODY, row, length - made, prompt + made)
        # The prompt's other samples hit the prefix cache.
        yield Request(prompt + made if row % samples == 0 else 0, (stream,))


async def _gathered(left: asyncio.Queue[SimulatedSequence]) -> list[SimulatedSequence]:
    """Waits for the first sequence to leave the instance, and briefly for others that leave at the same time."""
    streams = [await left.get()]
    await asyncio.sleep(HOLD_SECONDS)
    while not left.empty():
        streams.append(left.get_nowait())
    return streams
