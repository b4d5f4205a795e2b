"""The sampler of a workload of one's own: holds weights as a rollout engine does, and draws and seals shards of an iteration.

Consumes weights in buckets, and tasks that name a shard. Produces sealed shards: a shard's columns, and its images if the
workload shows any. Everything random follows from the task, so that it does not matter which sampler draws a shard, nor how many
there are; a shard that is sealed already is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from yatt_core.digests import json_digest
from yatt_core.engines.device import prepared_device
from yatt_core.engines.rollout.own_tensors import OwnTensors
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.experience.sampled import adopt_sampled, seal_sampled
from yatt_core.inputs.manifest import START
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import SampleTask, ShardRef
from yatt_core.spec.run import RunSpec
from yatt_core.workloads.columns import encode_columns
from yatt_core.workloads.contract import Columns, Continues, Draw, Rows, SamplesApart, ShowsImages, Workload
from yatt_core.workloads.finding import called, continue_from, make_workload, verify_workload
from yatt_core.workloads.images import encode_images
from yatt_core.workloads.sampled_files import COLUMNS_FILE, IMAGES_FILE
from yatt_core.workloads.saved import read_state
from yatt_core.workloads.shard_rows import checked_shards
from yatt_core.workloads.turns import turn_of

NO_TEXT = "a sampler of a workload of one's own answers no prompts"


@dataclass(frozen=True, slots=True, eq=False)
class DrawnShards:
    """An iteration's columns before anything is sampled, and its shards.

    draw: the turn of which the columns are a function.
    """

    draw: Draw
    columns: Columns
    shards: tuple[slice, ...]

    def rows(self, shard: int) -> Columns:
        """Returns copies of a shard's rows, which whoever samples them may write into."""
        rows = self.shards[shard]
        return {name: column[rows].copy() for name, column in self.columns.items()}


class WorkloadSampler(OwnTensors):
    """Implements `RolloutEngine` but for responses, and `SamplingEngine`; one torch thread, as on the trainer's ranks."""

    def __init__(self, spec: RunSpec, run_folder: Path, inputs_folder: Path) -> None:
        device = prepared_device(spec)
        self._spec = spec
        self._folder = run_folder
        dtype = str(getattr(spec.rollout.engine, "dtype", "float32"))
        verify_workload(spec, run_folder)
        workload = make_workload(spec, run_folder, str(device))
        assert isinstance(workload, SamplesApart), "classes without its methods are refused with workload.sampled_by"
        called(spec, workload.begin_sampling, inputs_folder, dtype)
        if spec.workload.start is not None and isinstance(workload, Continues):
            continue_from(spec, partial(called, spec), workload, read_state(inputs_folder / START))
        self._workload: Workload = workload
        self._parts: SamplesApart = workload
        super().__init__(self._whole_tensors(), {})
        # What a shard depends on beside its key; the number of samplers is not part of it.
        self._made_by = json_digest(
            {
                "workload": spec.workload.model_dump(mode="json", exclude={"sampled_by"}),
                "seed": spec.seed,
                "dtype": dtype,
            }
        )
        self._latest: DrawnShards | None = None

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """The engine's capabilities, by name. A shard is sampled alone, so that nothing else is in its batches."""
        return {"batch_invariant": True, "sleep": True, "in_flight_update": False}

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that it gets after each update."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def keep_initial_weights(self) -> None:
        """Has it sample with the weights that it was built with, as version 0: nobody has to send any."""
        self._version = 0

    def count_shards(self, task: SampleTask) -> int:
        """Returns the number of an iteration's shards; of a task, all but the shard counts."""
        return len(self._drawn(task).shards)

    def sample(self, task: SampleTask) -> ShardRef:
        """Draws and seals a shard, unless it is sealed; returns how it is named.

        Raises `InfrastructureError` if the sampler holds another version than the task's.
        """
        if (sealed := adopt_sampled(self._folder, task.key, self._made_by)) is not None:
            return sealed
        if task.version != self._version or self._version < 0:
            raise InfrastructureError(
                f"the sampler holds weights of version {self._version}, but {task.key} needs version {task.version}; sync it "
                "first"
            )
        self.wake()
        workload = self._workload
        place = f"workload.kind: {self._spec.workload.title}"
        drawn = self._drawn(task)
        found = called(self._spec, self._parts.sample_shard, drawn.rows(task.key.shard), drawn.draw)
        contents = {COLUMNS_FILE: encode_columns(found, f"{place}: sample_shard")}
        if isinstance(workload, ShowsImages):
            contents[IMAGES_FILE] = encode_images(
                called(self._spec, workload.images, found, drawn.draw), f"{place}: images"
            )
        return seal_sampled(
            run_folder=self._folder, key=task.key, term=task.term, made_by=self._made_by, contents=contents
        )

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Raises `InfrastructureError`: nobody asks a sampler for responses."""
        raise InfrastructureError(NO_TEXT)

    def stream(self, request: GenerateRequest) -> Iterator[GeneratePiece | None]:
        """Raises `InfrastructureError`: nobody asks a sampler for responses."""
        raise InfrastructureError(NO_TEXT)

    def _complete(self, version: int) -> None:
        """Does nothing: nothing is derived from the weights."""

    def _drawn(self, task: SampleTask) -> DrawnShards:
        """Returns what is drawn for the task's iteration; the latest is kept, since its shards come one after another."""
        draw = turn_of(self._spec, task.key, task.number)
        if self._latest is None or self._latest.draw != draw:
            columns = called(self._spec, self._workload.draw, draw)
            shards = called(self._spec, self._parts.shards, columns)
            place = f"workload.kind: {self._spec.workload.title}"
            self._latest = DrawnShards(draw, columns, checked_shards(columns, shards, place))
        return self._latest

    def _whole_tensors(self) -> dict[str, torch.Tensor]:
        """Returns the tensors in which weights arrive. Raises `ConfigurationError` for what cannot take any."""
        found = called(self._spec, self._parts.sampling_weights)
        for name, tensor in found.items():
            if isinstance(tensor, Rows) or not tensor.is_floating_point():
                raise ConfigurationError(
                    f"workload.kind: {self._spec.workload.title}: sampling_weights: {name!r} is not a whole floating-point "
                    "tensor in a sampler; expected one"
                )
        return {name: tensor.detach() for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}
