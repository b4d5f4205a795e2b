"""The torch trainer: one logical rank of data-parallel GRPO over a Hugging Face model, whole on every rank.

Produces the same bits on every rank, since the ranks meet only to sum gradients and metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from yatt_core.checkpoints.contents import ADAPTERS, OPTIMIZER, REFERENCE, WEIGHTS, open_tensors
from yatt_core.digests import ordered_weights_digest
from yatt_core.engines.adapters import add_adapters
from yatt_core.engines.dense.kernels import require_aligned
from yatt_core.engines.dense.shape import why_general
from yatt_core.engines.device import on_cores, placed
from yatt_core.engines.images import open_reader
from yatt_core.engines.offload import HeldMemory, together
from yatt_core.engines.train.base.layout import Layout
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.base.policy_engine import PolicyTrainEngine
from yatt_core.engines.train.model.forward import PolicyForward
from yatt_core.engines.train.model.optimizer import MOMENTS, FlatAdamW, state_bytes, whole_parts
from yatt_core.engines.train.model.state_files import StateFacts, require_same
from yatt_core.engines.train.roles.critic import FlatCritic, exchange_head
from yatt_core.engines.train.roles.teacher import Teacher, Teachers, rows_of
from yatt_core.engines.train.torch.dense_passes import DensePasses, neighbours_of
from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.trainer import TorchTrainer
from yatt_core.wire.parts import TensorPart


class TorchPolicy(Policy):
    """A model that is whole on every rank."""

    optimizer: FlatAdamW

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        engine = spec.trainer.engine
        if not isinstance(engine, TorchTrainer):
            raise ConfigurationError(f"trainer.engine: {engine.kind} is not the torch trainer")
        super().__init__(
            spec, context, Layout(engine.ranks, engine.ranks, engine.micro_batch_tokens, packed=engine.packed)
        )
        self._dtype = engine.dtype
        self._kernels = engine.kernels

    def build(self) -> None:
        model = load_causal_lm(self.context.model_path, "float32")
        if self.spec.trainer.lora is not None:
            add_adapters(model, self.spec.trainer.lora, self.spec.seed)
        values = self.spec.trains_reward_model
        if values:
            exchange_head(model)
        self._model = placed(model, self.device, "the trainer", state_bytes(model))
        aligned = self.spec.aligned
        if aligned:
            require_aligned(self._kernels, why_general(self._model))
        fast = self._kernels == "auto" and not values and not why_general(self._model)
        self.optimizer = FlatAdamW(self._model, self.spec.trainer.optimizer, neighbours_of(self._model) if fast else ())
        self.reader = open_reader(self._model, self.context.model_path, self.context.inputs_folder)
        temperature = self.spec.trainer_temperature
        if fast:
            self.forward = DensePasses(self._model, self.optimizer, temperature, self._dtype, aligned=aligned)
        else:
            self.forward = PolicyForward(self._model, temperature, self._dtype, self.reader, values=values)
        if (distillation := self.spec.algorithm.distillation) is not None and distillation.teachers:
            self.teachers = Teachers(distillation, self._load_teacher)
        if (critic := self.spec.critic) is not None:
            ranks = self.layout.ranks
            self.critic = FlatCritic(
                spec=critic, policy_path=self.context.model_path, dtype=self._dtype, device=self.device, ranks=ranks
            )

    def _load_teacher(self, path: str) -> Teacher:
        model = placed(load_causal_lm(path, self._dtype).requires_grad_(False), self.device, "the teacher")
        return Teacher(model, PolicyForward(model, self.spec.trainer_temperature, self._dtype), rows_of(model))

    def probe_model(self) -> nn.Module:
        return self.loaded()

    def digest_of(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        """Computes the digest on every rank, so that ranks whose copies differ are noticed."""
        return ordered_weights_digest((name, tensor.detach().numpy()) for name, tensor in tensors)

    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """See `Policy`. Every rank holds whole tensors."""
        model = self.loaded()
        optimizer = self.optimizer
        known: dict[str, Callable[[], Mapping[str, torch.Tensor]]] = {
            "weights": lambda: untied(model),
            "reference": lambda: optimizer.named(self.reference),
        }
        held = known[kind]() if kind in known else optimizer.moment(kind)
        return whole_parts(held.items(), self.layout.ranks)

    def tensors(self, ordered: bool = False) -> Iterable[tuple[str, torch.Tensor]]:
        held = untied(self.loaded())
        return on_cores({name: held[name] for name in (sorted(held) if ordered else held)})

    def memory(self) -> HeldMemory:
        reference = () if self.reference is None else (self.reference,)
        teachers = [] if self.teachers is None else self.teachers.modules
        models = [tensor for model in (self.loaded(), *teachers) for tensor in model.state_dict().values()]
        lasting = (*models, *self.optimizer.flat(), *reference)
        own = HeldMemory(lasting, (self.optimizer.gradients,))
        return own if self.critic is None else together(own, self.critic.memory())

    @property
    def steps(self) -> int:
        """See `Policy`."""
        return self.optimizer.steps

    def load_state(self, folder: Path, facts: StateFacts) -> None:
        lora = self.spec.trainer.lora
        optimizer = self.optimizer
        weights = open_tensors(folder, WEIGHTS)
        require_same(folder, weights.shapes, {name: tensor.shape for name, tensor in self.weights()})
        own = self.loaded().state_dict()
        learned = weights if lora is None else open_tensors(folder, ADAPTERS)
        trained = {name: tuple(view.shape) for name, view in optimizer.named(optimizer.gradients).items()}
        known = {name: own[name].shape for name in learned.shapes if name in own}
        require_same(folder, learned.shapes, known | trained)
        with torch.no_grad():
            for name in learned.shapes:
                own[name].copy_(torch.from_numpy(learned.read(name)))
        optimizer.reset()
        if facts.optimizer_steps:
            moments = open_tensors(folder, OPTIMIZER)
            expected = {f"{kind}.{name}": trained[name] for kind in MOMENTS for name in trained}
            require_same(folder, moments.shapes, expected)
            optimizer.load_moments(lambda name: torch.from_numpy(moments.read(name)), facts.optimizer_steps)
        if self.spec.keeps_reference:
            reference = open_tensors(folder, REFERENCE)
            require_same(folder, reference.shapes, trained)
            self.reference = torch.zeros_like(optimizer.gradients)
            for name, view in optimizer.named(self.reference).items():
                view.copy_(torch.from_numpy(reference.read(name)))


class TorchTrainEngine(PolicyTrainEngine):
    """Implements `TrainEngine`."""

    policy: TorchPolicy

    def __init__(self, spec: RunSpec, context: RankContext) -> None:
        super().__init__(TorchPolicy(spec, context))


def untied(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a model's tensors, a tied one once."""
    seen: set[tuple[int, torch.Size]] = set()
    found = {}
    for name, tensor in model.state_dict().items():
        identity = (tensor.data_ptr(), tensor.shape)
        if identity not in seen or not tensor.numel():
            seen.add(identity)
            found[name] = tensor
    return found
