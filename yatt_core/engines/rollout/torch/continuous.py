"""The torch rollout engine that answers several calls together (arXiv 2309.06180 calls it continuous batching).

Consumes decode batches from several threads, which share one loop (`crowd`), and new weights; produces responses as they end.
It hands responses over with the tokens that they have, so that another instance goes on with them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from yatt_core.engines.dense.kernels import KernelChoice
from yatt_core.engines.rollout.served.engine_lock import EngineLock
from yatt_core.engines.rollout.torch.crowd import Came, Crowd
from yatt_core.engines.rollout.torch.decoding import check_prompts, longest_of
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.errors import InfrastructureError, YattError
from yatt_core.progress import advanced
from yatt_core.protocols.engines import EngineWork
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult, Returned
from yatt_core.protocols.pieces import join_pieces
from yatt_core.wire.parts import Rectangle

NAMELESS = -1
"""The number of a call that nobody gives up by its number."""


class ContinuousTorchEngine(TorchRolloutEngine):
    """One engine. Several threads may call it at the same time; any thread that waits takes a step for all of them.

    The parameters are those of `TorchRolloutEngine`.

    max_num_seqs: maximum number of responses in progress, over all calls.
    """

    def __init__(
        self,
        model_path: str,
        dtype: str,
        max_prompt_tokens: int,
        max_new_tokens: int,
        inputs_folder: Path,
        max_num_seqs: int,
        folder_version: int = -1,
        kernels: KernelChoice = "auto",
    ) -> None:
        super().__init__(
            model_path=model_path,
            dtype=dtype,
            max_prompt_tokens=max_prompt_tokens,
            max_new_tokens=max_new_tokens,
            inputs_folder=inputs_folder,
            folder_version=folder_version,
            kernels=kernels,
            max_num_seqs=max_num_seqs,
        )
        self._lock = EngineLock()
        self._crowd = Crowd(self._runner, max_num_seqs, max_prompt_tokens, max_new_tokens)
        self._seconds = self._prefill_seconds = 0.0
        self._capabilities = {**self._capabilities, "several_calls": True}

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """See `TorchRolloutEngine`. Raises `InfrastructureError` if a part is handed over meanwhile."""
        if not request.seeds.size:
            return super().generate(request)
        started = time.perf_counter()
        pieces = [piece for piece in self.stream(request) if piece is not None]
        return replace(join_pieces(pieces).result, seconds=time.perf_counter() - started)

    def stream(self, request: GenerateRequest) -> Iterator[GeneratePiece | None]:
        """Yields the responses of `generate`, each as soon as it has ended. Raises as `generate` does."""
        for piece in self.answers(request, NAMELESS):
            if isinstance(piece, Returned):
                raise InfrastructureError(
                    "responses were handed over to another engine, but nobody would go on with them"
                )
            yield piece

    def answers(self, request: GenerateRequest, number: int) -> Iterator[GeneratePiece | Returned | None]:
        """Yields the responses of `generate`, each as soon as it has ended, and those that are handed over.

        number: the call's, for `give_up`.

        Raises as `generate` does, and `InfrastructureError` if the weights change or the engine falls asleep meanwhile. If the
        iterator is closed before its end, the rest is dropped.
        """
        started = time.perf_counter()
        with self._lock.alone():
            self._make_ready(request)
            check_prompts(request)
            if not request.seeds.size:
                return
            self._runner.check(longest_of(request))
            call = self._crowd.join(request, number)
        try:
            while call.left or call.arrived:
                self._lock.wait_for(call.arrived, self._step)
                if not call.arrived:
                    yield None
                while call.arrived:
                    finished = time.perf_counter()
                    yield _timed(call.arrived.popleft(), finished - started)
                    started = finished
        finally:
            with self._lock.alone():
                self._crowd.withdraw(call)

    def hand_over(self, count: int) -> None:
        """Hands over the newest responses, at least so many if there are, between two steps."""
        with self._lock.alone():
            self._crowd.hand_over(count)

    def give_up(self, numbers: Collection[int]) -> None:
        """Drops calls of `answers` between two steps, so that none of their responses is decoded or handed over any more."""
        with self._lock.alone():
            self._crowd.give_up(numbers)

    def take_work(self) -> EngineWork:
        """Returns the work done since the last call."""
        with self._lock.alone():
            done = replace(self._crowd.take_work(), seconds=self._seconds, prefill_seconds=self._prefill_seconds)
            self._seconds = self._prefill_seconds = 0.0
            return done

    def begin_update(self, version: int) -> None:
        """See `RolloutEngine`. Calls in progress fail: their callers are gone, since an update waits for all others."""
        with self._lock.alone():
            self._crowd.fail(InfrastructureError("the rollout engine's weights changed while it answered"))
            super().begin_update(version)

    def rectangle_digests(self, rectangles: Sequence[Rectangle]) -> list[str]:
        """See `RolloutEngine`. A sleeping engine wakes for it."""
        with self._lock.alone():
            return super().rectangle_digests(rectangles)

    def sleep(self) -> None:
        """See `RolloutEngine`. Calls in progress fail, as with an update."""
        with self._lock.alone():
            self._crowd.fail(InfrastructureError("the rollout engine fell asleep while it answered"))
            self._sleep()

    def wake(self) -> None:
        """See `RolloutEngine`."""
        with self._lock.alone():
            self._wake()

    def _step(self) -> None:
        """Takes a step for all calls. An error ends all of them, except for one of the data of a call that enters."""
        started = time.perf_counter()
        advanced()
        try:
            with self._runner.generating():
                self._crowd.admit()
                began = time.perf_counter()
                self._crowd.advance()
        except YattError as error:
            self._crowd.fail(error)
            raise
        except BaseException:
            self._crowd.fail(InfrastructureError("the rollout engine failed in a step"))
            raise
        self._prefill_seconds += began - started
        self._seconds += time.perf_counter() - began


def _timed(came: Came, seconds: float) -> GeneratePiece | Returned:
    """Returns what came with the seconds that it took. Raises it if it is an error."""
    if isinstance(came, YattError):
        raise came
    return replace(came, result=replace(came.result, seconds=seconds))
