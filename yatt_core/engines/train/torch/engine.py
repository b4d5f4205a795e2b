"""The torch trainer: one logical rank of data-parallel GRPO over a Hugging Face model, whole on every rank.

Produces the same bits on every rank, since the ranks meet only to sum gradients and metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from yatt_core.digests import weights_digest
from yatt_core.engines.adapters import add_adapters
from yatt_core.engines.dense.shape import why_general
from yatt_core.engines.device import on_cores, placed
from yatt_core.engines.images import open_reader
from yatt_core.engines.offload import Held, together
from yatt_core.engines.train.base.engine import Layout, PolicyTrainEngine
from yatt_core.engines.train.model.forward import PolicyForward
from yatt_core.engines.train.model.optimizer import MOMENTS, FlatAdamW, state_bytes
from yatt_core.engines.train.model.state_files import Arrays, StateFacts, read_state, require_same
from yatt_core.engines.train.roles.critic import FlatCritic
from yatt_core.engines.train.roles.teacher import Teacher, load_teacher, rows_of
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.trainer import TorchTrainer


class TorchTrainEngine(PolicyTrainEngine):
    """Implements `TrainEngine`, with one torch thread; all calls come from one thread."""

    _optimizer: FlatAdamW

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        engine = spec.trainer.engine
        if not isinstance(engine, TorchTrainer):
            raise ConfigurationError(f"trainer.engine: {engine.kind} is not the torch trainer")
        super().__init__(
            spec, context, Layout(engine.ranks, engine.ranks, engine.micro_batch_tokens, packed=engine.packed)
        )
        self._dtype, self._kernels = engine.dtype, engine.kernels

    def _build(self) -> None:
        model = load_causal_lm(self._context.model_path, "float32")
        if self._spec.trainer.lora is not None:
            add_adapters(model, self._spec.trainer.lora, self._spec.seed)
        self._model = placed(model, self._device, "the trainer", state_bytes(model))
        fast = self._kernels == "auto" and not why_general(self._model)
        self._optimizer = FlatAdamW(
            self._model, self._spec.trainer.optimizer, neighbours_of(self._model) if fast else ()
        )
        self._reader = open_reader(self._model, self._context.model_path, self._context.inputs_folder)
        temperature = self._spec.rollout.temperature
        if fast:
            self._forward = DensePasses(self._model, self._optimizer, temperature, self._dtype)
        else:
            self._forward = PolicyForward(self._model, temperature, self._dtype, self._reader)
        if (distillation := self._spec.algorithm.distillation) is not None:
            teacher = placed(load_teacher(distillation, self._frozen_model), self._device, "the teacher")
            self._teacher = Teacher(teacher, PolicyForward(teacher, temperature, self._dtype), rows_of(teacher))
        if (critic := self._spec.critic) is not None:
            self._critic = FlatCritic(critic, self._context.model_path, self._dtype, self._device)

    def _frozen_model(self, path: str) -> nn.Module:
        return load_causal_lm(path, self._dtype).requires_grad_(False)

    def _probe_model(self) -> nn.Module:
        return self._loaded()

    def _digest_of(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        return weights_digest({name: tensor.numpy() for name, tensor in tensors})

    def _tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        seen: set[tuple[int, torch.Size]] = set()
        for name, tensor in self._loaded().state_dict().items():
            identity = (tensor.data_ptr(), tensor.shape)
            if identity not in seen or not tensor.numel():
                seen.add(identity)
                yield name, tensor.detach().cpu()

    def _memory(self) -> Held:
        reference = () if self._reference is None else (self._reference,)
        teacher = () if self._teacher is None else self._teacher.module.state_dict().values()
        lasting = (*self._loaded().state_dict().values(), *self._optimizer.flat(), *reference, *teacher)
        own = Held(lasting, (self._optimizer.gradients,))
        return own if self._critic is None else together(own, self._critic.memory())

    def _moments(self) -> tuple[Iterable[tuple[str, torch.Tensor]], int]:
        tensors, steps = self._optimizer.moments()
        return on_cores(tensors), steps

    def _reference_arrays(self) -> Arrays:
        """Returns views of the reference, which never changes, or of a CPU copy of it."""
        return {name: tensor.numpy() for name, tensor in self._optimizer.named(self._reference.cpu()).items()}

    def _load_state(self, folder: Path, facts: StateFacts) -> None:
        state = read_state(
            folder,
            with_reference=self._spec.algorithm.kl is not None,
            with_adapters=self._spec.trainer.lora is not None,
        )
        require_same(folder, _shapes(state.weights), {name: tensor.shape for name, tensor in self._weights()})
        own = self._loaded().state_dict()
        learned = state.weights if state.adapters is None else state.adapters
        trained = {name: tuple(view.shape) for name, view in self._optimizer.named(self._optimizer.gradients).items()}
        require_same(folder, _shapes(learned), {name: own[name].shape for name in learned if name in own} | trained)
        kinds = MOMENTS if facts.optimizer_steps else ()
        require_same(
            folder, _shapes(state.moments), {f"{kind}.{name}": trained[name] for kind in kinds for name in trained}
        )
        if state.reference is not None:
            require_same(folder, _shapes(state.reference), trained)
        with torch.no_grad():
            for name, array in learned.items():
                own[name].copy_(torch.from_numpy(array))
        moments = {name: torch.from_numpy(array) for name, array in state.moments.items()}
        self._optimizer.load_moments(moments, facts.optimizer_steps)
        if state.reference is not None:
            self._reference = torch.zeros_like(self._optimizer.gradients)
            for name, view in self._optimizer.named(self._reference).items():
                view.copy_(torch.from_numpy(state.reference[name]))


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}
