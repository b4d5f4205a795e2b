"""The Megatron-Core trainer: one rank of GRPO over a dense Llama, Qwen2 or Qwen3 in tensor, pipeline and data parallel.

Consumes sealed experience and a Hugging Face folder, of which a rank reads only its own part; produces the
weights of the next version under Hugging Face names, one tensor at a time. Each rank writes its parts of Hugging
Face's tensors to a checkpoint, and reads its parts from one, whichever engine and layout has written it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from yatt_core.checkpoints.contents import OPTIMIZER, REFERENCE, WEIGHTS, open_tensors
from yatt_core.engines.offload import HeldMemory
from yatt_core.engines.train.base.layout import Layout
from yatt_core.engines.train.base.policy_engine import PolicyTrainEngine
from yatt_core.engines.train.base.shared_model import Named, SharedPolicy
from yatt_core.engines.train.megatron.bridge import EMBEDDING, HEAD, ParameterMapping, shard_of, whole_of
from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.megatron.forward import MegatronForward
from yatt_core.engines.train.megatron.model import Grid, ModelPart, build_part, make_grid
from yatt_core.engines.train.megatron.optimizer import Master, MegatronAdamW
from yatt_core.engines.train.megatron.regions import Region, regions_in, regions_of
from yatt_core.engines.train.megatron.transfers import announce_transfers
from yatt_core.engines.train.model.optimizer import MOMENTS
from yatt_core.engines.train.model.state_files import StateFacts, require_same
from yatt_core.engines.train.ranks.collective import ReplicaCollective
from yatt_core.engines.train.ranks.process_group import lost_group, require_process_group
from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import read_config
from yatt_core.models.tensor_files import Sliceable, TensorFolder
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import MegatronTrainer
from yatt_core.wire.part_files import PartFiles
from yatt_core.wire.parts import Box, TensorPart

Shapes = dict[str, tuple[int, ...]]
"""Shapes of the Hugging Face tensors of one parameter, in order."""


class MegatronPolicy(SharedPolicy):
    """A model in tensor, pipeline and data parallel."""

    optimizer: MegatronAdamW
    _grid: Grid
    _part: ModelPart
    _contents: list[list[Shapes]]

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        engine = spec.trainer.engine
        if not isinstance(engine, MegatronTrainer):
            raise ConfigurationError(f"trainer.engine: {engine.kind} is not the megatron trainer")
        layout = Layout(engine.ranks, engine.data_parallel_size, engine.micro_batch_tokens, even=True)
        super().__init__(spec, context, layout)
        self._engine = engine

    def _divide(self) -> None:
        announce_transfers()
        with on_this_device(), lost_group(self.world):
            self._grid = grid = make_grid(self._engine)
        self.collective = ReplicaCollective(self.world, grid.copy, grid.copies, grid.speaks)

    def build(self) -> None:
        require_process_group(self.world)
        device = self.device
        spec = self.spec
        grid = self._grid
        with on_this_device(), lost_group(self.world):
            self._part = part = build_part(read_config(self.context.model_path), self._engine, grid, device)
            distribute = self._engine.use_distributed_optimizer
            self.optimizer = MegatronAdamW(
                part=part, grid=grid, spec=spec.trainer.optimizer, distributed=distribute, world=self.world
            )
            self._contents = self._all_contents()
        self._model = part.module
        self.forward = MegatronForward(
            part=part, grid=grid, temperature=spec.trainer_temperature, device=device, world=self.world
        )
        self._take(TensorFolder(Path(self.context.model_path)).stored)

    def _all_contents(self) -> list[list[Shapes]]:
        """Returns the tensors of each stage, parameter by parameter."""
        mine = [
            {name: tuple(part.shape) for name, part in zip(place.names, self._joined(parameter, place), strict=True)}
            for parameter, place in self._own()
        ]
        found: list[Any] = [None] * self._grid.stages
        distributed.all_gather_object(found, mine, group=self._grid.stage_group)
        return found

    def _joined(self, parameter: torch.Tensor, place: ParameterMapping) -> tuple[torch.Tensor, ...]:
        """Returns the Hugging Face tensors of a parameter, as shapes only."""
        shard = torch.empty(parameter.shape, device="meta")
        return whole_of([shard] * self._grid.tensors, place.cut, self._part.shape)

    def _own(self) -> Iterator[tuple[torch.nn.Parameter, ParameterMapping]]:
        """Yields this rank's parameters, except second copies."""
        return ((parameter, place) for _, parameter, place in self._part.places() if not self._part.repeats(place))

    def _held(self) -> Any:
        return self.optimizer.held()

    def _hold(self, held: Any) -> None:
        self.optimizer.hold(held)

    def memory(self) -> HeldMemory:
        module = self._part.module
        optimizer = self.optimizer
        lasting = (*module.parameters(), *module.buffers(), *optimizer.lasting(), *(self.reference or ()))
        return HeldMemory(lasting, tuple(self._part.gradients()))

    @property
    def steps(self) -> int:
        """See `Policy`."""
        return self.optimizer.steps

    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """See `Policy`. Weights are the master weights; with a distributed optimizer, each copy has a range."""
        self.loaded()
        grid = self._grid
        reference = dict(zip(self._part.module.parameters(), self.reference or (), strict=False))
        for parameter, place in self._own():
            if kind == "reference":
                held: Master | None = Master(reference[parameter].float().flatten(), 0, parameter.numel())
            else:
                held = self.optimizer.held_numbers(parameter, kind)
            if held is None:
                continue
            several = kind == "reference" or not self.optimizer.divided
            holders = grid.holders(every_tensor=place.cut == "whole", every_copy=several)
            size = tuple(parameter.shape)
            for whole in regions_of(
                place=place, size=size, shape=self._part.shape, rank=grid.tensor, ranks=grid.tensors
            ):
                for region in regions_in(whole, held.start, held.stop):
                    values = region.values(held.weights)
                    yield TensorPart(
                        name=region.name, shape=region.shape, offsets=region.box.offsets, values=values, holders=holders
                    )

    def _whole(self, ordered: bool) -> Named:
        if ordered:
            yield from self._by_name()
            return
        own = list(self._own())
        for stage, contents in enumerate(self._contents):
            for number, shapes in enumerate(contents):
                found = [self._told(part, stage) for part in self._gathered(own, stage, number, list(shapes))]
                yield from zip(shapes, found, strict=True)

    def _by_name(self) -> Named:
        """Yields whole weights sorted by name; a parameter of several tensors is gathered once for each of them."""
        own = list(self._own())
        places = {
            name: (stage, number)
            for stage, contents in enumerate(self._contents)
            for number, shapes in enumerate(contents)
            for name in shapes
        }
        for name, (stage, number) in sorted(places.items()):
            for part in self._gathered(own, stage, number, [name]):
                yield name, self._told(part, stage)

    def _gathered(
        self, own: list[tuple[torch.nn.Parameter, ParameterMapping]], stage: int, number: int, names: list[str]
    ) -> list[torch.Tensor]:
        """Gathers tensors of a parameter on its stage's ranks; elsewhere returns room for them."""
        shapes = self._contents[stage][number]
        if stage != self._grid.stage:
            return [torch.empty(shapes[name], device=self.device) for name in names]
        with torch.no_grad(), lost_group(self.world):
            parameter, place = own[number]
            parts = self._together(self.optimizer.whole(parameter), place)
            return [parts[list(shapes).index(name)].contiguous() for name in names]

    def _together(self, shard: torch.Tensor, place: ParameterMapping) -> tuple[torch.Tensor, ...]:
        """Gathers a parameter's Hugging Face tensors from the parts of all tensor-parallel ranks."""
        shards = [shard]
        if self._grid.tensors > 1:
            shards = [torch.empty_like(shard) for _ in range(self._grid.tensors)]
            distributed.all_gather(shards, shard.contiguous(), group=self._grid.tensor_group)
        return whole_of(shards, place.cut, self._part.shape)

    def _told(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """Broadcasts a stage's tensor to all stages, and returns it on the CPU."""
        if self._grid.stages > 1:
            group = self._grid.stage_group
            with lost_group(self.world):
                distributed.broadcast(tensor, src=distributed.get_global_rank(group, stage), group=group)
        return tensor.cpu()

    def load_state(self, folder: Path, facts: StateFacts) -> None:
        weights = open_tensors(folder, WEIGHTS)
        optimizer = self.optimizer
        expected = {name: shape for stage in self._contents for shapes in stage for name, shape in shapes.items()}
        require_same(folder, weights.shapes, expected)
        optimizer.reset()
        for _, parameter, place in self._part.places():
            values = self._read(weights, parameter, place).view(parameter.shape)
            optimizer.take(parameter, values.to(parameter.device))
        if facts.optimizer_steps:
            optimizer.steps = facts.optimizer_steps
            moments = open_tensors(folder, OPTIMIZER)
            for kind in MOMENTS:
                for _, parameter, place in self._part.places():
                    if (master := optimizer.master(parameter)) is not None:
                        own = (master.start, master.stop)
                        optimizer.take_moment(
                            parameter,
                            kind,
                            self._read(files=moments, parameter=parameter, place=place, prefix=f"{kind}.", span=own),
                        )
        if self.spec.keeps_reference:
            reference = open_tensors(folder, REFERENCE)
            self.reference = [
                self._read(reference, parameter, place).view(parameter.shape).to(parameter.device, parameter.dtype)
                for _, parameter, place in self._part.places()
            ]

    def _read(
        self,
        files: PartFiles,
        parameter: torch.nn.Parameter,
        place: ParameterMapping,
        prefix: str = "",
        span: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Reads this rank's part of a parameter, or a range of it, flattened; padding is 0.

        prefix: what precedes the tensors' names in the files.
        """
        start, stop = span or (0, parameter.numel())
        numbers = torch.zeros(stop - start)
        for name, region in self._regions(parameter, place, start, stop):
            region.put(numbers, torch.from_numpy(files.read(f"{prefix}{name}", region.box)).float())
        return numbers

    def _regions(
        self, parameter: torch.nn.Parameter, place: ParameterMapping, start: int, stop: int
    ) -> Iterator[tuple[str, Region]]:
        """Yields the rectangles of a range of this rank's part of a parameter, with the tensors that have them."""
        grid = self._grid
        tied = self._part.repeats(place)
        for whole in regions_of(
            place=place, size=tuple(parameter.shape), shape=self._part.shape, rank=grid.tensor, ranks=grid.tensors
        ):
            for region in regions_in(whole, start, stop):
                yield EMBEDDING if tied else whole.name, region

    def rectangles(self, kind: str) -> Iterator[tuple[str, Box]]:
        for _, parameter, place in self._part.places():
            start = 0
            stop = parameter.numel()
            if kind in MOMENTS:
                if (master := self.optimizer.master(parameter)) is None:
                    continue
                start = master.start
                stop = master.stop
            for name, region in self._regions(parameter, place, start, stop):
                yield name, region.box

    def _take(self, stored: Callable[[str], Sliceable]) -> None:
        """Fills this rank's parts from files, one parameter at a time."""
        for _, parameter, place in self._part.places():
            self.optimizer.take(parameter, self._shard(place, stored).to(parameter.device))

    def _shard(self, place: ParameterMapping, stored: Callable[[str], Sliceable]) -> torch.Tensor:
        """Reads this rank's part of a parameter; with tied embeddings, the head is the embedding."""
        tied = self._part.shape.tied
        parts = [stored(EMBEDDING if tied and name == HEAD else name) for name in place.names]
        return shard_of(
            parts=parts, cut=place.cut, shape=self._part.shape, rank=self._grid.tensor, ranks=self._grid.tensors
        ).float()


class MegatronTrainEngine(PolicyTrainEngine):
    """Implements `TrainEngine`."""

    policy: MegatronPolicy

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        super().__init__(MegatronPolicy(spec, context))
