"""A rollout engine in a process and an environment of its own, such as vLLM (arXiv 2309.06180); updates weights in place.

Consumes decode batches and new weights; produces responses. Several threads may call it at the same time; any
thread that waits has the engine step for all of them. vLLM's responses in float32 on a CPU are a function of prompt,
seed and weights alone.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yatt_core.engines.rollout.incoming import ExpectedTensors, WeightTaker
from yatt_core.engines.rollout.served.companions import Spanned
from yatt_core.engines.rollout.served.engine_lock import EngineLock
from yatt_core.engines.rollout.served.launch import Launch
from yatt_core.engines.rollout.served.process import EngineProcess
from yatt_core.engines.rollout.served.protocol import Opening
from yatt_core.engines.rollout.served.responses import Ended, Response, Step, result_of
from yatt_core.engines.rollout.served.shared_bucket import BucketMemory
from yatt_core.engines.rollout.tensor_layout import engine_layout
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError, NumericError
from yatt_core.progress import advanced
from yatt_core.protocols.engines import EngineWork
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.wire.buckets import BucketBuffer, Piece, WeightBucket
from yatt_core.wire.parts import Rectangle, Sizes

if TYPE_CHECKING:
    from yatt_core.engines.rollout.served.kept_weights import KeptWeights

MOST_STEPS = 8
"""Of one call, unless a response ends before. A new request or new weights wait for them; with fewer, an engine of a small model
would spend a share of its time on calls."""
OF_YATT = {"kind", "instances", "environment"}
"""Keys of an engine's section that its process does not get."""


Arrived = deque[tuple[int, Ended]]
"""What has ended of one request, by row."""


class ServedRolloutEngine(WeightTaker):
    """One engine.

    launch: how its process is started.
    max_prompt_tokens, max_new_tokens: limits on a request, in tokens.
    folder_version: version of the weights in the model folder; -1 if they only define the shapes and the
        first update supplies the weights.
    inputs_folder: folder of the images that requests name by address; None: prompts have no images.
    spanned: the engine's nodes, if it has several.
    takes_changes: whether it keeps a copy of its weights in host memory, so that it can be sent changes alone.
    invariant: whether a response must have the same bits in every batch, if the engine can see to it on its devices; the
        capability `batch_invariant` says whether it does.

    Raises `ConfigurationError` for a model that the engine cannot run here, and as `EngineProcess` does.
    """

    def __init__(
        self,
        launch: Launch,
        model_path: str,
        spec: VllmRollout,
        max_prompt_tokens: int,
        max_new_tokens: int,
        folder_version: int = -1,
        inputs_folder: Path | None = None,
        spanned: Spanned | None = None,
        takes_changes: bool = False,
        invariant: bool = False,
    ) -> None:
        self._title = launch.kind.title
        self._layout = engine_layout(Path(model_path))
        self._max_prompt_tokens = max_prompt_tokens
        self._max_new_tokens = max_new_tokens
        longest = max_prompt_tokens + max_new_tokens
        if self._layout.positions is not None:
            longest = min(longest, self._layout.positions)
        self._longest = longest
        self._spanned = spanned
        span = None if spanned is None else spanned.span

        def join(process: EngineProcess) -> None:
            if spanned is not None:
                spanned.companions.join(
                    model_path=model_path,
                    engine=spec,
                    longest=longest,
                    span=spanned.span,
                    invariant=invariant,
                    lost=process.end,
                )

        inputs = None if inputs_folder is None else str(inputs_folder)
        opening = Opening(
            model_path=model_path,
            settings=process_settings(spec),
            longest=longest,
            version=folder_version,
            inputs_folder=inputs,
            span=span,
            invariant=invariant,
        )
        address = "" if span is None else span.own
        try:
            self._core = EngineProcess(launch, spec.environment, opening, address, started=join)
        except BaseException:
            if spanned is not None:
                spanned.companions.leave()
            raise
        try:
            own = dict(self._core.call("capabilities"))
        except BaseException:
            self._end()
            raise
        self._lock = EngineLock()
        self._open: dict[str, tuple[Arrived, int]] = {}
        self._numbers = itertools.count()
        self._updates = 0
        self._memory = BucketMemory(own.pop("reads_gpu", False) and has_this_torch(self._core.versions))
        self._kept = kept_weights(self._layout.shapes, spec.dtype) if takes_changes else None
        self._spoilt = False
        self._work = EngineWork()
        self._version = folder_version
        self._recomputes = spec.in_flight_update == "recompute"
        self._capabilities = {
            "batch_invariant": False,
            "sleep": False,
            "in_flight_update": True,
            "delta_sync": takes_changes,
            "several_calls": True,
            **own,
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
        started = time.perf_counter()
        responses = list[tuple[int, Response]]()
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
            with self._failing():
                super().begin_update(version)

    def take(self, bucket: WeightBucket) -> None:
        """See `RolloutEngine`."""
        with self._lock.alone(), self._failing():
            super().take(bucket)
            if self._kept is None:
                self._core.call("take", self._memory.share(bucket))

    def buffers(self, count: int, nbytes: int) -> Sequence[BucketBuffer] | None:
        """See `RolloutEngine`. The engine's workers read this memory, unless they read the copy that is kept."""
        return None if self._kept is not None else self._memory.buffers(count, nbytes)

    def end_update(self) -> None:
        """See `RolloutEngine`."""
        with self._lock.alone(), self._failing():
            super().end_update()
            self._lock.resume()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Lets an update fail if a part of it does: waiting responses, which are paused, resume, and fail."""
        try:
            yield
        except BaseException:
            self._incoming = None
            self._lock.resume()
            raise

    def _begin(self, version: int) -> ExpectedTensors:
        if self._kept is not None:
            self._kept.begin()
        self._core.call("begin_update", self._layout.renamed)
        return self._layout

    def _put(self, piece: Piece) -> None:
        """Changes the copy. Without one, the engine's workers load the whole bucket, once all of it has been checked."""
        if self._kept is not None:
            self._kept.put(piece)

    def _complete(self, version: int) -> None:
        if self._kept is not None:
            for bucket in self._kept.buckets(with_digests=self._spanned is not None):
                self._core.call("take", bucket)
                advanced()
            self._kept.end()
        recompute = bool(self._open) and (self._recomputes or self._spoilt)
        self._core.call("end_update", version, recompute, self._spoilt)
        self._spoilt = False
        self._updates += 1

    def rectangle_digests(self, rectangles: Sequence[Rectangle]) -> list[str] | None:
        """See `RolloutEngine`. Sleeping weights wake for it. None for an architecture of which a tensor is not found.

        Raises `InfrastructureError` for tensors that the model does not have.
        """
        by_tensor = dict[str, list[Rectangle]]()
        for rectangle in rectangles:
            by_tensor.setdefault(self._layout.name_of(rectangle), []).append(rectangle)
        found = dict[Rectangle, str]()
        with self._lock.alone():
            for name, of_one in by_tensor.items():
                digests = self._core.call("rectangle_digests", name, self._layout.shapes[name], of_one)
                if digests is None:
                    return None
                found |= zip(of_one, digests, strict=True)
                advanced()
        return [found[rectangle] for rectangle in rectangles]

    def take_work(self) -> EngineWork:
        """Returns the work done since the last call."""
        with self._lock.alone():
            done = self._work
            self._work = EngineWork()
            return done

    def sleep(self) -> None:
        """Moves the weights to the host and frees the cache on a GPU.

        On a CPU, memory is freed only when the process ends.
        """
        with self._lock.alone():
            if self._capabilities["sleep"]:
                self._core.call("sleep")

    def wake(self) -> None:
        """Restores the memory of weights and cache."""
        with self._lock.alone():
            self._core.call("wake", "weights", "kv_cache")

    @property
    def is_lost(self) -> bool:
        """True once the engine's process has ended or hangs; a new engine must take its place."""
        return self._core.is_lost

    def close(self) -> None:
        """Ends the engine's process. Calls in progress fail."""
        self._end()
        self._memory.close()
        if self._kept is not None:
            self._kept.close()

    def _end(self) -> None:
        self._core.close()
        if self._spanned is not None:
            self._spanned.companions.leave()

    def _answers(self, request: GenerateRequest) -> Generator[list[tuple[int, Response]]]:
        """Yields the responses that have ended since the last time, in row order; an empty list if none have.

        If the generator is closed before its end, all remaining responses are aborted.
        """
        arrived: Arrived = deque()
        names: list[str] = []
        try:
            with self._lock.alone():
                self._check(request)
                self._submit(request, arrived, names)
            missing = len(names)
            while missing:
                self._lock.wait_for(arrived, self._step)
                ended = [arrived.popleft() for _ in range(len(arrived))]
                missing -= len(ended)
                yield sorted(((row, _response(each)) for row, each in ended), key=_row)
        except NumericError:
            self._spoilt = True
            raise
        finally:
            self._withdraw([name for name in names if name in self._open])

    def _submit(self, request: GenerateRequest, arrived: Arrived, names: list[str]) -> None:
        """Submits the responses to the engine.

        names: names of the engine's requests; this method appends to them.
        """
        number = next(self._numbers)
        names += [f"{number}.{row}" for row in range(request.seeds.size)]
        self._open |= {name: (arrived, row) for row, name in enumerate(names)}
        self._core.call("submit", request, names, self._salt())

    def _salt(self) -> str:
        """Returns a salt for the prefix cache, which ignores weights in its keys; it changes with each update."""
        return str(self._updates)

    def _step(self) -> None:
        """Steps the engine once and distributes the completions that have ended."""
        if self._version < 0:
            raise InfrastructureError(
                f"the {self._title} rollout engine lost its weights in a failed update; sync it again"
            )
        step: Step = self._core.call("step", MOST_STEPS)
        advanced()
        done = self._work
        self._work = EngineWork(
            done.steps + step.steps, done.sequence_steps + step.sequences, done.seconds + step.seconds
        )
        for name, ended in step.ended:
            arrived, row = self._open.pop(name)
            arrived.append((row, ended))

    def _withdraw(self, names: Sequence[str]) -> None:
        """Aborts the given responses that are still in progress."""
        if names and not self._core.is_lost:
            with self._lock.alone():
                self._core.call("abort", [name for name in names if self._open.pop(name, None) is not None])

    def _check(self, request: GenerateRequest) -> None:
        """Raises as `generate` does for a request that cannot be answered."""
        if request.weight_version != self._version or self._version < 0:
            raise InfrastructureError(
                f"the {self._title} rollout engine holds weights of version {self._version}, but the request needs version"
                f" {request.weight_version}; sync it first"
            )
        if request.max_new_tokens > self._max_new_tokens:
            raise ConfigurationError(
                f"the request asks for {request.max_new_tokens} new tokens, but the engine was built for"
                f" {self._max_new_tokens}"
            )
        if request.begun is not None:
            raise InfrastructureError(
                f"the {self._title} rollout engine does not go on with a response that another engine has begun"
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


def kept_weights(shapes: Mapping[str, Sizes], dtype: str) -> KeptWeights:
    """Returns the copy of an engine that takes changes. Only it needs torch in the actor's process before the first update."""
    from yatt_core.engines.rollout.served.kept_weights import KeptWeights

    return KeptWeights(shapes, dtype)


def has_this_torch(versions: Mapping[str, str]) -> bool:
    """Returns True if an engine's process has this one's version of torch, which describes a GPU's memory in its own way.

    versions: of the process's packages, by name.
    """
    own, other = (each.partition("+")[0] for each in (metadata.version("torch"), versions.get("torch", "")))
    return own == other


def process_settings(spec: VllmRollout) -> dict[str, Any]:
    """Returns what an engine's process gets of its section in the spec."""
    return spec.model_dump(mode="json", exclude=OF_YATT)


def _row(ended: tuple[int, Response]) -> int:
    return ended[0]


def _response(ended: Ended) -> Response:
    if isinstance(ended, Response):
        return ended
    raise ended
