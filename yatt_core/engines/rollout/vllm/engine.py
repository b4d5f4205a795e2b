"""The rollout engine on vLLM (arXiv 2309.06180), stepped in this process; updates weights in place.

Consumes decode batches and new weights; produces responses. Several threads may call it at the same time; any
thread that waits steps the engine for all of them. In float32 on a CPU, a response is a function of prompt,
seed and weights alone.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yatt_core.engines.rollout.incoming import Assembly, Wanted, WeightTaker
from yatt_core.engines.rollout.tensor_layout import read_layout
from yatt_core.engines.rollout.vllm.engine_lock import EngineLock
from yatt_core.engines.rollout.vllm.environment import prepare_environment
from yatt_core.engines.rollout.vllm.responses import Response, result_of
from yatt_core.engines.rollout.vllm.sleeping import Part, Sleep
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, NumericError
from yatt_core.installed import VLLM_FOR_CPUS, has_distribution
from yatt_core.progress import advanced
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.wire.buckets import Piece, WeightBucket


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an engine.

    steps: number of steps.
    sequence_steps: number of sequences processed, summed over the steps.
    seconds: duration of the steps.
    """

    steps: int = 0
    sequence_steps: int = 0
    seconds: float = 0.0


Arrived = deque[tuple[int, Any]]
"""One request's finished completions, by row, as vLLM returns them."""


class VllmRolloutEngine(WeightTaker):
    """One engine.

    max_prompt_tokens, max_new_tokens: limits on a request, in tokens.
    folder_version: version of the weights in the model folder; -1 if they only define the shapes and the
        first update supplies the weights.

    Raises `ConfigurationError` for a model that vLLM cannot run here.
    """

    def __init__(
        self,
        model_path: str,
        spec: VllmRollout,
        max_prompt_tokens: int,
        max_new_tokens: int,
        folder_version: int = -1,
    ) -> None:
        self._processors = has_distribution(VLLM_FOR_CPUS)
        prepare_environment(self._processors)
        from yatt_core.engines.rollout.vllm.opening import open_engine

        self._layout = read_layout(Path(model_path))
        self._max_prompt_tokens, self._max_new_tokens = max_prompt_tokens, max_new_tokens
        longest = max_prompt_tokens + max_new_tokens
        if self._layout.positions is not None:
            longest = min(longest, self._layout.positions)
        self._longest = longest
        self._engine = open_engine(model_path, spec, longest)
        self._lock = EngineLock()
        self._open: dict[str, tuple[Arrived, int]] = {}
        self._numbers, self._updates = itertools.count(), 0
        self._sleep, self._transferring, self._spoilt = Sleep(), False, False
        self._assembly = Assembly()
        self._work, self._most_sequences = Work(), spec.max_num_seqs
        self._version = folder_version
        self._recomputes = spec.in_flight_update == "recompute"
        self._engine.set_weight_version(str(folder_version))
        self._capabilities = {
            "batch_invariant": self._processors and spec.dtype == "float32" and spec.kv_cache_dtype == "auto",
            "sleep": not self._processors,
            "in_flight_update": True,
            "several_calls": True,
        }

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """The engine's capabilities, by name."""
        return self._capabilities

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answers every prompt as often as the request asks.

        Raises `InfrastructureError` if asked for a version other than its own, `DataError` for a prompt that
        is empty or too long, `ConfigurationError` for more new tokens than the engine was built for,
        `NumericError` if logits are not finite.
        """
        started, responses = time.perf_counter(), list[tuple[int, Response]]()
        with closing(self._answers(request)) as answers:
            for ended in answers:
                responses += ended
        return result_of(sorted(responses, key=_row), request.weight_version, time.perf_counter() - started)

    def stream(self, request: GenerateRequest) -> Iterator[GeneratePiece | None]:
        """Yields the responses of `generate`, each as soon as it has ended. Raises as `generate` does."""
        started = time.perf_counter()
        with closing(self._answers(request)) as answers:
            for ended in answers:
                if not ended:
                    yield None
                    continue
                finished = time.perf_counter()
                rows = tuple(row for row, _ in ended)
                yield GeneratePiece(rows, result_of(ended, request.weight_version, finished - started))
                started = finished

    def begin_update(self, version: int) -> None:
        """See `RolloutEngine`.

        Responses in progress wait and then continue as `in_flight_update` specifies; a failed update loses
        them. Cached prompt states of the old weights are discarded.
        """
        with self._lock.alone():
            self._lock.pause()
            self._or_resume(lambda: super(VllmRolloutEngine, self).begin_update(version))

    def take(self, bucket: WeightBucket) -> None:
        """See `RolloutEngine`."""
        with self._lock.alone():
            self._or_resume(lambda: super(VllmRolloutEngine, self).take(bucket))

    def end_update(self) -> None:
        """See `RolloutEngine`."""
        with self._lock.alone():
            self._or_resume(super().end_update)
            self._lock.resume()

    def _or_resume(self, part: Callable[[], None]) -> None:
        """Runs a part of an update. If it fails, waiting responses resume and fail because the weights are gone."""
        try:
            part()
        except BaseException:
            self._lock.resume()
            raise

    def _begin(self, version: int) -> Wanted:
        from yatt_core.engines.rollout.vllm.weights import begin_transfer, end_transfer

        self._wake("weights")
        if self._transferring:
            end_transfer(self._engine)
        self._transferring = True
        begin_transfer(self._engine)
        self._assembly = Assembly()
        return Wanted(self._layout.shapes, self._layout.own_name)

    def _put(self, piece: Piece) -> None:
        from yatt_core.engines.rollout.tensor_bits import as_tensor
        from yatt_core.engines.rollout.vllm.weights import transfer

        if (tensor := self._assembly.put(piece)) is not None:
            given = [(piece.name, as_tensor(tensor, piece.kind))]
            # For vLLM, a failed transfer has ended.
            self._transferring = False
            transfer(self._engine, given)
            self._transferring = True

    def _complete(self, version: int) -> None:
        from yatt_core.engines.rollout.vllm.weights import clear_cache, end_transfer

        end_transfer(self._engine)
        self._transferring = False
        self._engine.set_weight_version(str(version))
        # The next request wakes the cache of an engine that slept; by then, the trainer has freed memory.
        if self._open and (self._recomputes or self._spoilt):
            self._engine.reset_prefix_cache(reset_running_requests=True)
        if self._spoilt:
            self._wake("kv_cache")
            clear_cache(self._engine)
            self._spoilt = False
        self._updates += 1

    def take_work(self) -> Work:
        """Returns the work done since the last call."""
        with self._lock.alone():
            done, self._work = self._work, Work()
            return done

    def sleep(self) -> None:
        """Moves the weights to the host and frees the cache on a GPU.

        On a CPU, memory is freed only when the process ends.
        """
        with self._lock.alone():
            if not self._capabilities["sleep"]:
                return
            due, awake = self._sleep.lie_down()
            if due:
                self._engine.wake_up(list(due))
            if awake:
                self._engine.sleep(level=1)

    def wake(self) -> None:
        """Restores the memory of weights and cache."""
        with self._lock.alone():
            self._wake("weights", "kv_cache")

    def _wake(self, *parts: Part) -> None:
        """Restores the memory of those parts that are asleep."""
        if due := self._sleep.wake(*parts):
            self._engine.wake_up(list(due))

    def _answers(self, request: GenerateRequest) -> Generator[list[tuple[int, Response]]]:
        """Yields the responses that have ended since the last time, in row order; an empty list if none have.

        If the generator is closed before its end, all remaining responses are aborted.
        """
        arrived: Arrived = deque()
        names: list[str] = []
        try:
            with self._lock.alone():
                self._check(request)
                self._wake("weights", "kv_cache")
                self._submit(request, arrived, names)
            missing = len(names)
            while missing:
                self._lock.wait_for(arrived, self._step)
                ended = [arrived.popleft() for _ in range(len(arrived))]
                missing -= len(ended)
                yield sorted(((row, Response.of(completion)) for row, completion in ended), key=_row)
        except NumericError:
            self._spoilt = True
            raise
        finally:
            self._withdraw([name for name in names if name in self._open])

    def _submit(self, request: GenerateRequest, arrived: Arrived, names: list[str]) -> None:
        """Submits the responses to the engine.

        names: names of vLLM's requests; this method appends to them.
        """
        from yatt_core.engines.rollout.vllm.opening import sampling_of

        number, limits = next(self._numbers), request.prompt_limits.tolist()
        for place, prompt in enumerate(request.prompts):
            asked = {"prompt_token_ids": prompt.tolist(), "cache_salt": self._salt()}
            for seed in request.seeds[place].tolist():
                row = len(names)
                names.append(f"{number}.{row}")
                self._open[names[-1]] = (arrived, row)
                self._engine.add_request(names[-1], asked, sampling_of(request, limits[place], seed))

    def _salt(self) -> str:
        """Returns a salt for the prefix cache, which ignores weights in its keys; it changes with each update."""
        return str(self._updates)

    def _step(self) -> None:
        """Steps the engine once and distributes the completions that have ended."""
        if self._version < 0:
            raise InfrastructureError("the vLLM rollout engine lost its weights in a failed update; sync it again")
        started, sequences = time.perf_counter(), min(len(self._open), self._most_sequences)
        outputs = self._engine.step()
        advanced()
        done, seconds = self._work, time.perf_counter() - started
        self._work = Work(done.steps + 1, done.sequence_steps + sequences, done.seconds + seconds)
        for output in outputs:
            arrived, row = self._open.pop(output.request_id)
            arrived.append((row, output.outputs[0]))

    def _withdraw(self, names: Sequence[str]) -> None:
        """Aborts the given responses that are still in progress."""
        if names:
            with self._lock.alone():
                self._engine.abort_request([name for name in names if self._open.pop(name, None) is not None])

    def _check(self, request: GenerateRequest) -> None:
        """Raises as `generate` does for a request that cannot be answered."""
        if request.weight_version != self._version or self._version < 0:
            raise InfrastructureError(
                f"the vLLM rollout engine holds weights of version {self._version}, but the request needs version"
                f" {request.weight_version}; sync it first"
            )
        if request.media:
            raise ConfigurationError(
                "the vLLM rollout engine does not support images; expected rollout.engine.kind: torch"
            )
        if request.max_new_tokens > self._max_new_tokens:
            raise ConfigurationError(
                f"the request asks for {request.max_new_tokens} new tokens, but the engine was built for"
                f" {self._max_new_tokens}"
            )
        for row, (prompt, limit) in enumerate(zip(request.prompts, request.prompt_limits.tolist(), strict=True)):
            if not len(prompt):
                raise DataError(f"prompt {row} of the decode batch has no tokens")
            if len(prompt) > self._max_prompt_tokens or len(prompt) + limit > self._longest:
                raise DataError(
                    f"prompt {row} of the decode batch has {len(prompt)} tokens; data.max_prompt_tokens is"
                    f" {self._max_prompt_tokens}, and with a response of {limit} tokens there is room for"
                    f" {self._longest - limit}"
                )


def _row(ended: tuple[int, Response]) -> int:
    return ended[0]
