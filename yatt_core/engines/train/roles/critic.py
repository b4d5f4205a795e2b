"""The critic: a value model that learns alongside the policy, with its own optimizer.

Consumes batches with the returns computed by `prepare`; changes its own weights. As with the policy, the
engines decide where its tensors are. The critic is saved in checkpoints and goes nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from yatt_core.algorithms.value_loss import clipped_value_loss
from yatt_core.checkpoints.contents import CRITIC, CRITIC_OPTIMIZER, open_tensors
from yatt_core.engines.device import on_cores, placed
from yatt_core.engines.offload import HeldMemory
from yatt_core.engines.train.model.forward import MicroBatch, PolicyForward, assemble
from yatt_core.engines.train.model.optimizer import FlatAdamW, state_bytes, whole_parts
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.model.sequences import counted_lengths
from yatt_core.engines.train.model.state_files import require_same
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.steps.plan import StepPlan
from yatt_core.errors import ConfigurationError, NumericError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.experience.prepared import PreparedColumns
from yatt_core.models.loading import load_causal_lm
from yatt_core.spec.sections.algorithm import CriticSpec
from yatt_core.wire.parts import Box, TensorPart

Named = Iterable[tuple[str, torch.Tensor]]
SUMS = ("loss", "clipped")


class Critic(ABC):
    """A critic.

    passes: return values instead of log-probabilities.
    head: name of the parameter that the policy does not have.
    """

    passes: TokenPasses
    optimizer: PolicyOptimizer

    def __init__(self, spec: CriticSpec, head: str) -> None:
        self.spec = spec
        self.head = head

    def begin(self, policy: Named) -> None:
        """Sets version 0: a fresh optimizer and, without a model of its own, the policy's weights.

        policy: whole tensors; every rank must consume them.
        """
        self.optimizer.reset()
        if self.spec.model is None:
            self.take(policy)

    @abstractmethod
    def take(self, policy: Named) -> None:
        """Copies the policy's weights, except the head."""

    @abstractmethod
    def tensors(self) -> Named:
        """Yields all parameters sorted by name, whole and on the CPU; every rank must consume them."""

    @abstractmethod
    def parts(self, kind: str) -> Iterable[TensorPart[torch.Tensor]]:
        """Yields this rank's parts of the weights or a moment, as the engine's `parts` does."""

    @abstractmethod
    def rectangles(self, kind: str) -> Iterable[tuple[str, Box]] | None:
        """Returns what `load` reads, as the engine's `_rectangles` does."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps of the optimizer."""

    @abstractmethod
    def load(self, folder: Path, steps: int) -> None:
        """Loads a checkpoint. Raises `DataError` if it does not match this model."""

    @abstractmethod
    def memory(self) -> HeldMemory:
        """Returns what the critic holds in this rank's device memory, for `offload`."""

    def learns_alone(self, iteration: int) -> bool:
        """Returns True if the policy stays unchanged in an iteration."""
        return iteration <= self.spec.warmup_iterations

    def gradients(
        self, collective: Collective, batch: ExperienceBatch, columns: PreparedColumns, step: StepPlan
    ) -> ValueSums:
        """Leaves the gradients of a step's mean loss over counted tokens in the optimizer. Raises `NumericError`."""
        assert columns.values is not None and columns.returns is not None, "the prepared columns have been checked"
        old = columns.values
        returns = columns.returns
        tokens = int(counted_lengths(batch)[step.samples].sum())
        sums = torch.zeros(len(SUMS), dtype=torch.float64)
        self.optimizer.zero()

        def loss(micro_batch: MicroBatch, values: torch.Tensor, _entropies: torch.Tensor) -> torch.Tensor:
            at = micro_batch.positions
            found, clipped = clipped_value_loss(values, _on(values, old[at]), _on(values, returns[at]), self.spec.clip)
            value = found.sum() / max(tokens, 1)
            sums.add_(torch.stack([value.detach().double(), clipped.sum().double()]).cpu())
            return value

        micro_batches = [assemble(batch, indices, step.packed) for indices in step.parts[collective.rank]]
        self.passes.backward(micro_batches, loss)
        self.optimizer.reduce(collective)
        total, bounded = collective.sum(sums).tolist()
        if not np.isfinite(total):
            raise NumericError(f"the critic's loss is {total}; the step was not applied")
        return ValueSums(total, bounded, tokens)

    def apply(self, sums: ValueSums) -> float:
        """Takes the step. Returns the gradients' norm before clipping. Raises as `PolicyOptimizer.apply` does."""
        return self.optimizer.apply(self.spec.optimizer.learning_rate, sums.loss)


@dataclass(frozen=True, slots=True)
class ValueSums:
    """The sums of a step, over all ranks.

    loss: mean over the step's tokens.
    clipped: number of tokens whose clipped term was the larger one.
    """

    loss: float
    clipped: float
    tokens: int


def value_metrics(steps: list[ValueSums], norms: list[float]) -> dict[str, float]:
    """Returns metrics of class result: means over the steps, or over the tokens."""
    tokens = sum(sums.tokens for sums in steps)
    return {
        "value_loss": sum(sums.loss for sums in steps) / len(steps),
        "value_clip_fraction": sum(sums.clipped for sums in steps) / max(tokens, 1),
        "value_grad_norm": sum(norms) / len(norms),
    }


class FlatCritic(Critic):
    """A critic that is whole on every rank, in the flat buffers of `FlatAdamW`."""

    def __init__(self, spec: CriticSpec, policy_path: str, dtype: str, device: torch.device, ranks: int) -> None:
        model, head = load_critic(spec, policy_path, _load_whole)
        super().__init__(spec, head)
        self._ranks = ranks
        self._model = placed(model, device, "the critic", state_bytes(model))
        self.optimizer: FlatAdamW = FlatAdamW(model, spec.optimizer)
        self.passes = PolicyForward(model, 1.0, dtype, values=True)

    def take(self, policy: Named) -> None:
        """See `Critic`."""
        own = self._own()
        for name, tensor in policy:
            if name in own and name != self.head:
                own[name].copy_(tensor)

    def tensors(self) -> Named:
        """See `Critic`. Yields views of tensors that are on the CPU."""
        return on_cores(dict(sorted(self._own().items())))

    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """See `Critic`. Every rank holds whole tensors."""
        held = self._own() if kind == "weights" else self.optimizer.moment(kind)
        return whole_parts(held.items(), self._ranks)

    def rectangles(self, kind: str) -> None:
        """Returns None: a rank reads whole tensors."""
        return

    @property
    def steps(self) -> int:
        """See `Critic`."""
        return self.optimizer.steps

    def load(self, folder: Path, steps: int) -> None:
        """See `Critic`."""
        own = self._own()
        weights = open_tensors(folder, CRITIC)
        require_same(folder, weights.shapes, {name: tensor.shape for name, tensor in own.items()})
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(weights.read(name)))
        self.optimizer.reset()
        if steps:
            moments = open_tensors(folder, CRITIC_OPTIMIZER)
            self.optimizer.load_moments(lambda name: torch.from_numpy(moments.read(name)), steps)

    def memory(self) -> HeldMemory:
        """See `Critic`."""
        lasting = (*self._model.state_dict().values(), *self.optimizer.flat())
        return HeldMemory(lasting, (self.optimizer.gradients,))

    def _own(self) -> dict[str, torch.Tensor]:
        return self.optimizer.named(self.optimizer.values.detach())


class CriticLoader(Protocol):
    """Loads a causal language model from a folder and changes it, before it is divided if it is."""

    def __call__(self, path: str, dtype: str, *, change: Callable[[nn.Module], None]) -> nn.Module: ...


def load_critic(spec: CriticSpec, policy_path: str, load: CriticLoader) -> tuple[nn.Module, str]:
    """Loads the critic's module with a head of zeros, so that its values are 0, and returns the head's name.

    policy_path: folder from which the critic is loaded if it has no model of its own.

    Raises `ConfigurationError` for a folder that cannot be loaded.
    """
    names: list[str] = []
    try:
        path = policy_path if spec.model is None else spec.model.path
        model = load(path, "float32", change=lambda whole: names.append(exchange_head(whole)))
    except ConfigurationError as error:
        key = "" if spec.model is None else "algorithm.critic.model.path: "
        raise ConfigurationError(f"{key}{error}") from error
    return model, names[-1]


def exchange_head(model: Any) -> str:
    """Gives a model a head of one output, all zeros; returns the name of its weight."""
    head = nn.Linear(model.get_output_embeddings().in_features, 1, bias=False)
    nn.init.zeros_(head.weight)
    model.set_output_embeddings(head)
    name: str = next(name for name, parameter in model.named_parameters() if parameter is head.weight)
    return name


def _load_whole(path: str, dtype: str, *, change: Callable[[nn.Module], None]) -> nn.Module:
    model = load_causal_lm(path, dtype)
    change(model)
    return model


def _on(values: torch.Tensor, column: npt.NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(column).to(values.device)
