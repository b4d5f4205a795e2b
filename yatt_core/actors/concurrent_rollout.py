"""The Ray actor of an instance whose engine serves several calls at once, decoding the sequences of all calls together.

Consumes and produces the same as `RolloutActor`. Calls that generate or judge run on threads of their own;
all other calls are served one at a time, in the order of arrival, even while generation is in progress.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import ray

from yatt_core.actors.call_kinds import version_part
from yatt_core.actors.follower import spanned_by
from yatt_core.actors.holdings import VISIBLE
from yatt_core.actors.rollout import RolloutActor
from yatt_core.engines.rollout.served.companions import Spanned
from yatt_core.engines.rollout.served.engine import ServedRolloutEngine
from yatt_core.judges.generative import GenerativeJudge
from yatt_core.judges.loading import held_verdicts
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.protocols.engines import CommonEngine, HandingEngine
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, Returned
from yatt_core.protocols.judges import JudgeRequest, Verdict
from yatt_core.protocols.pieces import hold_back_finished
from yatt_core.protocols.receipts import ActorIdentity
from yatt_core.spent_time import ENGINE, spent

WORK = "work"
"""Ray's concurrency group for calls that generate or judge."""


class ConcurrentRolloutActor(RolloutActor):
    """One instance of the pool.

    gpus: numbers of its GPUs on its node if it has several; empty if it uses what Ray assigned to it.
    """

    def __init__(self, spec_json: str, run_folder: str, instance: int, term: int, gpus: tuple[str, ...] = ()) -> None:
        if gpus:
            os.environ[VISIBLE] = ",".join(gpus)
        super().__init__(spec_json, run_folder, instance, term)
        self._one_by_one = threading.Lock()
        self._followers: Sequence[Any] = ()

    def load(self, term: int, model_path: str, resident: bool, followers: Sequence[Any] = ()) -> ActorIdentity:
        """Builds the engine and the judges, again if the process of one of their engines has ended.

        followers: the actors of the engine's other nodes.
        """
        self._followers = followers
        found = [self._engine, *map(self._shared, self._judges)]
        own = [engine for engine in found if isinstance(engine, ServedRolloutEngine)]
        if any(engine.is_lost for engine in own):
            for engine in own:
                engine.close()
            self._engine = None
            self._judges = {}
        return super().load(term, model_path, resident)

    def _spanned(self, term: int) -> Spanned | None:
        """See `RolloutActor`."""
        return spanned_by(self._followers, term) if self._followers else None

    @ray.method(concurrency_group=WORK)  # type: ignore[untyped-decorator]
    def generate(self, term: int, request: GenerateRequest, number: int) -> Iterator[GeneratePiece | Returned]:
        """Answers a decode batch and yields finished pieces while it works on the rest and on other batches.

        Responses that it was told to hand over are returned unfinished.

        number: of the grant by which the call was made.
        """
        with self._presence.serving("generate", term), spent(ENGINE, version_part(request.weight_version)):
            engine = self._ready()
            pieces = engine.answers(request, number) if isinstance(engine, HandingEngine) else engine.stream(request)
            yield from hold_back_finished(pieces)

    def evict(self, term: int, count: int) -> None:
        """Hands over the newest `count` sequences, if the engine can; their calls yield them unfinished."""
        with self._presence.serving("evict", term):
            engine = self._ready()
            if isinstance(engine, HandingEngine):
                engine.hand_over(count)

    def give_up(self, term: int, numbers: Collection[int]) -> None:
        """Drops the calls of these grants, for whose answers nobody waits, if the engine can."""
        with self._presence.serving("give_up", term):
            engine = self._ready()
            if isinstance(engine, HandingEngine):
                engine.give_up(numbers)

    @ray.method(concurrency_group=WORK)  # type: ignore[untyped-decorator]
    def judge(self, term: int, part: str, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Asks the judge of a reward part. A judge that serves one call at a time first finishes earlier ones."""
        if self._shared(part) is None:
            with self._one_by_one:
                yield from super().judge(term, part, request)
            return
        with self._presence.serving("judge", term):
            self._ready()
            yield from held_verdicts(self._judges[part].judge(request))

    def usage(self, term: int) -> tuple[Usage, ...]:
        """Returns the work done since the last call."""
        rows = list(super().usage(term))
        engines: list[tuple[str, object]] = [(ROLLOUT, self._ready())]
        engines += [(JUDGE, self._shared(part)) for part in self._judges]
        for role, engine in engines:
            if not isinstance(engine, CommonEngine):
                continue
            work = engine.take_work()
            if work.steps or work.prompt_tokens:
                rows.append(
                    Usage(
                        instance=self._instance,
                        role=role,
                        steps=work.steps,
                        sequence_steps=work.sequence_steps,
                        decode_s=work.seconds,
                        prompt_tokens=work.prompt_tokens,
                        prefill_s=work.prefill_seconds,
                    )
                )
        return tuple(rows)

    def _shared(self, part: str) -> ServedRolloutEngine | None:
        """Returns the engine of a judge that serves several calls at once; None for other judges."""
        judge = self._judges.get(part)
        engine = judge.engine if isinstance(judge, GenerativeJudge) else None
        return engine if isinstance(engine, ServedRolloutEngine) else None
