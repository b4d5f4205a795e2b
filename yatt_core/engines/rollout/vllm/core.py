"""The vLLM engine inside its process: takes requests, steps, updates its weights, sleeps.

Imports vLLM. Consumes requests that its caller has checked, and where buckets of weights are; produces responses.
It serves one call at a time, and between two calls nothing runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm.platforms import current_platform

from yatt_core.engines.rectangles import rectangle_digest
from yatt_core.engines.rollout.served.protocol import Opening
from yatt_core.engines.rollout.served.responses import Ended, Step
from yatt_core.engines.rollout.served.shared_bucket import SharedBucket
from yatt_core.engines.rollout.vllm.completions import ended_of
from yatt_core.engines.rollout.vllm.held_weights import HeldPart, joined_parts
from yatt_core.engines.rollout.vllm.invariance import is_invariant
from yatt_core.engines.rollout.vllm.nameless import forget_names
from yatt_core.engines.rollout.vllm.opening import open_engine, sampling_of
from yatt_core.engines.rollout.vllm.settings import settings_of
from yatt_core.engines.rollout.vllm.sleeping import Part, Sleep
from yatt_core.engines.rollout.vllm.vision import Pictures
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.wire.parts import Rectangle, Sizes


class VllmCore:
    """One engine; see `open_engine`."""

    def __init__(self, opening: Opening) -> None:
        settings = settings_of(opening.settings)
        inputs = None if opening.inputs_folder is None else Path(opening.inputs_folder)
        self._pictures = Pictures(opening.model_path, inputs)
        self._engine = open_engine(opening.model_path, settings, opening.longest, opening.span)
        self._engine.collective_rpc("settle_in")
        forget_names("")
        self._engine.set_weight_version(str(opening.version))
        self._settings = settings
        self._sleep = Sleep()
        self._ended: list[tuple[str, Ended]] = []
        self._supported: set[str] = set()
        self._invariant = is_invariant(self, settings, opening, bool(current_platform.is_cpu()))

    def capabilities(self) -> dict[str, bool]:
        """Returns what the engine can do here, by the names of `RolloutEngine.capabilities`, and `reads_gpu`."""
        return {
            "batch_invariant": self._invariant,
            "sleep": not current_platform.is_cpu(),
            "reads_gpu": all(self._engine.collective_rpc("reads_gpu")),
        }

    @property
    def vocabulary(self) -> int:
        """Number of the model's tokens."""
        return int(self._engine.model_config.get_vocab_size())

    def load_again(self) -> None:
        """Loads the weights that the workers hold once more, as an update would."""
        self._engine.collective_rpc("load_again")

    def submit(self, request: GenerateRequest, names: Sequence[str], salt: str) -> None:
        """Adds the responses of a request, prompt by prompt, under these names.

        salt: responses share cached prompts only with those of the same salt.
        """
        self.wake("weights", "kv_cache")
        named = iter(names)
        limits = request.prompt_limits.tolist()
        if request.record_support:
            self._supported.update(names)
        for place in range(len(request.prompts)):
            asked = self._pictures.prompt(request, place, salt)
            for seed in request.seeds[place].tolist():
                self._engine.add_request(next(named), asked, sampling_of(request, limits[place], seed))

    def step(self, most: int) -> Step:
        """Steps the engine until something has ended, at most as often as is asked."""
        started = time.perf_counter()
        steps = 0
        sequences = 0
        while steps < most and not self._ended:
            sequences += min(self._engine.get_num_unfinished_requests(), self._settings.max_num_seqs)
            self._advance()
            steps += 1
        ended = tuple(self._ended)
        self._ended = []
        return Step(ended, steps, sequences, time.perf_counter() - started)

    def abort(self, names: Sequence[str]) -> None:
        """Aborts the given responses."""
        self._engine.abort_request(list(names))
        self._supported.difference_update(names)

    def begin_update(self, renamed: Mapping[str, str]) -> None:
        """Begins an update of the weights; the engine cannot step until it ends.

        renamed: the model's own names of tensors that arrive under other ones.
        """
        self.wake("weights")
        self._settle()
        self._engine.collective_rpc("begin_weights", args=(renamed,))

    def take(self, bucket: SharedBucket) -> None:
        """Loads a bucket."""
        self._engine.collective_rpc("take_weights", args=(bucket,))

    def end_update(self, version: int, recompute: bool, clear: bool) -> None:
        """Activates the weights that have arrived.

        recompute: whether the responses in progress compute their keys and values again.
        clear: whether the cache may contain values that are not finite.
        """
        self._engine.collective_rpc("end_weights")
        self._engine.set_weight_version(str(version))
        # Patches that were projected with the old weights.
        self._engine.engine_core.reset_encoder_cache()
        # The next request wakes the cache of an engine that slept; by then, the trainer has freed memory.
        if recompute:
            self._engine.reset_prefix_cache(reset_running_requests=True)
        if clear:
            self.wake("kv_cache")
            self._engine.collective_rpc("clear_cache")

    def rectangle_digests(self, name: str, shape: Sizes, rectangles: Sequence[Rectangle]) -> list[str] | None:
        """Returns digests of rectangles of a tensor; None if its workers cannot tell what they hold of it.

        name: of a tied head, that of the embeddings.
        shape: shape of the whole tensor.
        """
        self.wake("weights")
        parts: list[HeldPart | None] = self._engine.collective_rpc("held_part", args=(name, shape))
        whole = joined_parts(shape, [part for part in parts if part is not None])
        if whole is None:
            return None
        origin = (0,) * len(shape)
        return [rectangle_digest(rectangle, whole[rectangle.box.slices(origin)]) for rectangle in rectangles]

    def sleep(self) -> None:
        """Moves the weights to the host and frees the cache; the calls that need them wake the engine."""
        self._settle()
        due, awake = self._sleep.lie_down()
        if due:
            self._engine.wake_up(list(due))
        if awake:
            self._engine.sleep(level=1)

    def wake(self, *parts: Part) -> None:
        """Restores the memory of those parts that are asleep."""
        if due := self._sleep.wake(*parts):
            self._engine.wake_up(list(due))

    def _advance(self) -> None:
        outputs = self._engine.step()
        for output in outputs:
            name = output.request_id
            self._ended.append((name, ended_of(output.outputs[0], name in self._supported)))
            self._supported.discard(name)

    def _settle(self) -> None:
        """Finishes the batches in flight, of which pipeline stages and asynchronous scheduling have several.

        Their tokens would otherwise be recorded under the weights that are about to arrive.
        """
        core = self._engine.engine_core.engine_core
        if core.batch_queue is None:
            return
        core.pause_scheduler("keep", clear_cache=False)
        # While the scheduler is paused, a step adds an empty batch to the queue, and takes out one if the queue is full.
        for _ in range(2 * core.batch_queue_size):
            self._advance()
        core.resume_scheduler()
