"""The Megatron-Core trainer: one rank of GRPO over a dense Llama, Qwen2 or Qwen3 in tensor, pipeline and data parallel.

Consumes sealed experience and a Hugging Face folder, of which a rank reads only its own part; produces the
weights of the next version under Hugging Face names, one tensor at a time. A checkpoint holds whole tensors, so
it can be loaded under any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from yatt_core.engines.offload import Held
from yatt_core.engines.train.base.engine import Layout
from yatt_core.engines.train.base.shared_model import Named, SharedModelEngine
from yatt_core.engines.train.megatron.bridge import EMBEDDING, HEAD, Place, shard_of, whole_of
from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.megatron.forward import MegatronForward
from yatt_core.engines.train.megatron.model import Grid, Part, build_part, make_grid
from yatt_core.engines.train.megatron.optimizer import MegatronAdamW
from yatt_core.engines.train.megatron.transfers import announce_transfers
from yatt_core.engines.train.model.optimizer import MOMENTS
from yatt_core.engines.train.model.state_files import OPTIMIZER, REFERENCE, WEIGHTS, StateFacts, require_same
from yatt_core.engines.train.ranks.collective import ReplicaCollective
from yatt_core.engines.train.ranks.process_group import lost_group, require_process_group
from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import read_config
from yatt_core.models.tensor_files import Sliceable, TensorFile, TensorFolder
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import MegatronTrainer

Shapes = dict[str, tuple[int, ...]]
"""Shapes of the Hugging Face tensors of one parameter, in order."""


class MegatronTrainEngine(SharedModelEngine):
    """Implements `TrainEngine`."""

    _optimizer: MegatronAdamW
    _grid: Grid
    _part: Part
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
        with on_this_device(), lost_group(self._world):
            self._grid = grid = make_grid(self._engine)
        self._collective = ReplicaCollective(self._world, grid.copy, grid.copies, grid.speaks)

    def _build(self) -> None:
        require_process_group(self._world)
        device, spec, grid = self._device, self._spec, self._grid
        with on_this_device(), lost_group(self._world):
            self._part = part = build_part(read_config(self._context.model_path), self._engine, grid, device)
            distribute = self._engine.use_distributed_optimizer
            self._optimizer = MegatronAdamW(part, grid, spec.trainer.optimizer, distribute, self._world)
            self._contents = self._all_contents()
        self._model = part.module
        self._forward = MegatronForward(part, grid, spec.rollout.temperature, device, self._world)
        self._take("weights", TensorFolder(Path(self._context.model_path)).stored)

    def _all_contents(self) -> list[list[Shapes]]:
        """Returns the tensors of each stage, parameter by parameter."""
        mine = [
            {name: tuple(part.shape) for name, part in zip(place.names, self._joined(parameter, place), strict=True)}
            for parameter, place in self._own()
        ]
        found: list[Any] = [None] * self._grid.stages
        distributed.all_gather_object(found, mine, group=self._grid.stage_group)
        return found

    def _joined(self, parameter: torch.Tensor, place: Place) -> tuple[torch.Tensor, ...]:
        """Returns the Hugging Face tensors of a parameter, as shapes only."""
        shard = torch.empty(parameter.shape, device="meta")
        return whole_of([shard] * self._grid.tensors, place.cut, self._part.shape)

    def _own(self) -> Iterator[tuple[torch.nn.Parameter, Place]]:
        """Yields this rank's parameters, except second copies."""
        return ((parameter, place) for _, parameter, place in self._part.places() if not self._part.repeats(place))

    def _held(self) -> Any:
        return self._optimizer.held()

    def _hold(self, held: Any) -> None:
        self._optimizer.hold(held)

    def _memory(self) -> Held:
        module, optimizer = self._part.module, self._optimizer
        lasting = (*module.parameters(), *module.buffers(), *optimizer.lasting(), *(self._reference or ()))
        return Held(lasting, tuple(self._part.gradients()))

    def _steps(self) -> int:
        return self._optimizer.steps

    def _whole(self, kind: str) -> Named:
        own = list(self._own())
        reference = dict(zip(self._part.module.parameters(), self._reference or (), strict=False))
        for stage, contents in enumerate(self._contents):
            mine = stage == self._grid.stage
            for number, shapes in enumerate(contents):
                with torch.no_grad(), lost_group(self._world):
                    if mine:
                        parameter, place = own[number]
                        whole = kind != "reference"
                        shard = self._optimizer.whole(parameter, kind) if whole else reference[parameter].float()
                        parts = self._together(shard, place)
                    else:
                        device = self._device
                        parts = tuple(torch.empty(shape, device=device) for shape in shapes.values())
                    found = [self._told(part.contiguous(), stage).cpu() for part in parts]
                yield from zip(shapes, found, strict=True)

    def _together(self, shard: torch.Tensor, place: Place) -> tuple[torch.Tensor, ...]:
        """Gathers a parameter's Hugging Face tensors from the parts of all tensor-parallel ranks."""
        shards = [shard]
        if self._grid.tensors > 1:
            shards = [torch.empty_like(shard) for _ in range(self._grid.tensors)]
            distributed.all_gather(shards, shard.contiguous(), group=self._grid.tensor_group)
        return whole_of(shards, place.cut, self._part.shape)

    def _told(self, tensor: torch.Tensor, stage: int) -> torch.Tensor:
        """Broadcasts a stage's tensor to all stages."""
        if self._grid.stages > 1:
            group = self._grid.stage_group
            distributed.broadcast(tensor, src=distributed.get_global_rank(group, stage), group=group)
        return tensor

    def _load_state(self, folder: Path, facts: StateFacts) -> None:
        weights = TensorFile(folder / WEIGHTS)
        expected = {name: shape for stage in self._contents for shapes in stage for name, shape in shapes.items()}
        require_same(folder, weights.shapes, expected)
        self._optimizer.reset()
        self._take("weights", weights.stored)
        if facts.optimizer_steps:
            self._optimizer.steps = facts.optimizer_steps
            moments = TensorFile(folder / OPTIMIZER)
            for kind in MOMENTS:
                self._take(kind, lambda name, prefix=kind: moments.stored(f"{prefix}.{name}"))  # type: ignore[misc]
        if self._spec.algorithm.kl is not None:
            reference = TensorFile(folder / REFERENCE)
            self._reference = [
                self._shard(place, reference.stored).to(parameter.device, parameter.dtype)
                for _, parameter, place in self._part.places()
            ]

    def _take(self, kind: str, stored: Callable[[str], Sliceable]) -> None:
        """Fills this rank's parts from files, one parameter at a time."""
        for _, parameter, place in self._part.places():
            self._optimizer.take(parameter, kind, self._shard(place, stored).to(parameter.device))

    def _shard(self, place: Place, stored: Callable[[str], Sliceable]) -> torch.Tensor:
        """Reads this rank's part of a parameter; with tied embeddings, the head is the embedding."""
        tied = self._part.shape.tied
        parts = [stored(EMBEDDING if tied and name == HEAD else name) for name in place.names]
        return shard_of(parts, place.cut, self._part.shape, self._grid.tensor, self._grid.tensors).float()
