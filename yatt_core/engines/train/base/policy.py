"""A language model on one rank of the trainer: weights, optimizer and passes, the reference, teachers and critic beside it.

Consumes a folder of a model, and checkpoints. Produces tensors: for checkpoints, for rollout engines, for digests. Derived
classes decide whether tensors are whole or sharded over ranks. What is learnt, and from what, is not its business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from yatt_core.engines.adapters import is_adapter, plain_weights, share_of
from yatt_core.engines.device import prepared_device
from yatt_core.engines.images import ImageReader
from yatt_core.engines.offload import HeldMemory, Offloaded
from yatt_core.engines.train.base.layout import Layout
from yatt_core.engines.train.base.needed import Rectangles
from yatt_core.engines.train.model.passes import PolicyOptimizer, TokenPasses
from yatt_core.engines.train.model.state_files import StateFacts
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.time_limits import state_bytes
from yatt_core.engines.train.roles.critic import Critic
from yatt_core.engines.train.roles.teacher import Teachers
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.engines import RankContext
from yatt_core.spec.run import RunSpec
from yatt_core.wire.parts import TensorPart
from yatt_core.workloads.trained import Changed

CHEAP_DIGEST_PARAMETERS = 50_000_000
"""Up to this number of parameters, the weights' digest is part of every update's fingerprint."""


class Policy(ABC):
    """A model that learns. `build` must set `forward` and `optimizer`, and `teachers` and `critic` if the spec has them.

    world: all ranks.
    collective: the ranks over which samples are distributed; its rank is the index of this rank's part.
    reference: weights of before an iteration, as copied by the optimizer; None if the spec keeps none.
    reader: of the images of prompts; None without images.
    """

    forward: TokenPasses
    optimizer: PolicyOptimizer

    def __init__(self, spec: RunSpec, context: RankContext, layout: Layout) -> None:
        self.device = prepared_device(spec)
        self.spec = spec
        self.context = context
        self.layout = layout
        self.world = self.collective = Collective()
        self.reference: Any = None
        self.teachers: Teachers | None = None
        self.critic: Critic | None = None
        self.reader: ImageReader | None = None
        self._model: nn.Module | None = None
        self._away: Offloaded | None = None

    # -- what differs -------------------------------------------------------------------------------------------------

    @abstractmethod
    def build(self) -> None:
        """Builds the model with its initial weights, its passes and its optimizer."""

    @abstractmethod
    def parts(self, kind: str) -> Iterator[TensorPart[torch.Tensor]]:
        """Yields this rank's parts of the tensors as they are held: nothing is gathered, sent, or moved to the host.

        kind: `weights`, `reference` or a moment's name; moments have the names of their parameters. With low-rank
            adapters, weights are matrices and adapters, each under its own name.

        Values are mostly views that the next update overwrites.
        """

    @abstractmethod
    def tensors(self, ordered: bool = False) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields all tensors of the model, a tied one once; whole and on the CPU on rank 0. All ranks must iterate.

        ordered: whether they come sorted by name, or in whichever order is fastest.
        """

    @property
    @abstractmethod
    def steps(self) -> int:
        """Number of steps that the optimizer has taken since its last reset."""

    @abstractmethod
    def load_state(self, folder: Path, facts: StateFacts) -> None:
        """Loads a checkpoint's weights, moments and reference. Raises `DataError` if they do not match this model.

        Reads only what this rank holds.
        """

    def rectangles(self, kind: str) -> Rectangles | None:
        """Returns what `load_state` reads of the tensors of a kind (see `parts`); None if it reads all of them."""
        return None

    @abstractmethod
    def probe_model(self) -> nn.Module:
        """Returns a transformers model with the current weights, with which this rank can decode by itself."""

    @abstractmethod
    def memory(self) -> HeldMemory:
        """Returns what this rank holds on its device from one update to the next."""

    @abstractmethod
    def digest_of(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
        """Returns the digest of tensors sorted by name, none of which is kept; all ranks must call it."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def connect(self, rank: int, ranks: int, address: str, changed: Changed) -> None:
        """Joins the group of ranks. changed: called before this rank's tensors are taken apart, if they are."""
        self.world.connect(
            rank=rank,
            ranks=ranks,
            address=address,
            device=self.device,
            held=state_bytes(Path(self.context.model_path)),
        )

    def initialise(self) -> None:
        """Loads the initial weights from the model's folder."""
        self._away = None
        self.build()

    def begin(self) -> None:
        """Begins from the current weights: a fresh optimizer, a KL term's reference, and the critic if there is one."""
        self.optimizer.reset()
        if self.spec.keeps_reference:
            self.renew_reference()
        if self.critic is not None:
            self.critic.begin(self.weights())

    def renew_reference(self) -> None:
        """Makes the current policy the reference."""
        self.reference = self.optimizer.copy()

    @property
    def is_built(self) -> bool:
        """Whether there is a model."""
        return self._model is not None

    @property
    def is_at_hand(self) -> bool:
        """Whether there is a model, and nothing of it is offloaded."""
        return self.is_built and self._away is None

    def loaded(self) -> nn.Module:
        """Returns the model with everything back on its device; all computation goes through here."""
        if self._model is None:
            raise InfrastructureError("the trainer has no weights yet: initialise or restore it first")
        self.reload()
        return self._model

    def offload(self) -> None:
        """Frees device memory; does nothing if that is done, or if there is no model."""
        if self.is_at_hand:
            self._away = Offloaded(self.memory())

    def reload(self) -> None:
        """Brings back what was offloaded."""
        if self._away is not None:
            self._away.bring_back()
            self._away = None

    # -- tensors ------------------------------------------------------------------------------------------------------

    def weights(self, ordered: bool = False) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields all weights under Hugging Face names, as `tensors` does, merged with the adapters."""
        lora = self.spec.trainer.lora
        return self.tensors(ordered) if lora is None else plain_weights(self.tensors(ordered), share_of(lora))

    def adapters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields the adapters, as `tensors` does."""
        return (one for one in self.tensors() if is_adapter(one[0]))

    def synced(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Yields the tensors to send to the rollout engines."""
        lora = self.spec.trainer.lora
        return self.weights() if lora is None or lora.sync == "merged" else self.adapters()

    def weights_digest(self) -> str:
        """Returns the digest of the weights, on every rank."""
        return self.digest_of(self.weights(ordered=True))

    def cheap_digests(self) -> dict[str, float | str]:
        """Returns the digests of policy and critic, by their names in a fingerprint, of those that are small enough."""
        found: dict[str, float | str] = {}
        if self.optimizer.parameters <= CHEAP_DIGEST_PARAMETERS:
            found["weights_digest"] = self.weights_digest()
        if self.critic is not None and self.critic.optimizer.parameters <= CHEAP_DIGEST_PARAMETERS:
            found["critic_digest"] = self.digest_of(self.critic.tensors())
        return found

    def plans(self) -> Plans:
        """Returns the plans of its iterations."""
        return Plans(self.spec, self.layout.shape(self.spec))
