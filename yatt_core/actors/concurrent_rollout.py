"""The Ray actor around an instance whose engine serves several calls at once: sequences of all of them are decoded together.

Consumes and produces what `RolloutActor` does. Calls for work have threads of their own; all others are served one at a time, in
the order they come, whatever work is under way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import ray

from yatt_core.actors.rollout import RolloutActor
from yatt_core.engines.rollout.vllm.engine import VllmRolloutEngine
from yatt_core.judges.generative import GenerativeJudge
from yatt_core.judges.loading import held_verdicts
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest
from yatt_core.protocols.judges import JudgeRequest, Verdict
from yatt_core.protocols.pieces import hold_back

WORK = "work"
"""Ray's group of the calls for work."""


class ConcurrentRolloutActor(RolloutActor):
    """One instance of the pool."""

    def __init__(self, spec_json: str, run_folder: str, instance: int, term: int) -> None:
        super().__init__(spec_json, run_folder, instance, term)
        self._one_by_one = threading.Lock()

    @ray.method(concurrency_group=WORK)  # type: ignore[untyped-decorator]
    def generate(self, term: int, request: GenerateRequest) -> Iterator[GeneratePiece]:
        """Answers a decode batch, piece by piece while it works on the rest and on others."""
        with self._presence.serving("generate", term):
            yield from hold_back(self._ready().stream(request))

    @ray.method(concurrency_group=WORK)  # type: ignore[untyped-decorator]
    def judge(self, term: int, part: str, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Asks the judge of a reward part; one that serves a call at a time, when it is free."""
        if self._shared(part) is None:
            with self._one_by_one:
                yield from super().judge(term, part, request)
            return
        with self._presence.serving("judge", term):
            self._ready()
            yield from held_verdicts(self._judges[part].judge(request))

    def usage(self, term: int) -> tuple[Usage, ...]:
        """The work since this was last asked."""
        rows = list(super().usage(term))
        engines: list[tuple[str, Any]] = [(ROLLOUT, self._ready())]
        engines += [(JUDGE, engine) for part in self._judges if (engine := self._shared(part)) is not None]
        for role, engine in engines:
            work = engine.take_work()
            if work.steps:
                rows.append(Usage(self._instance, role, work.steps, work.sequence_steps, decode_s=work.seconds))
        return tuple(rows)

    def _shared(self, part: str) -> VllmRolloutEngine | None:
        """The engine of a judge that serves several calls at once; none for other judges."""
        judge = self._judges.get(part)
        engine = judge.engine if isinstance(judge, GenerativeJudge) else None
        return engine if isinstance(engine, VllmRolloutEngine) else None
