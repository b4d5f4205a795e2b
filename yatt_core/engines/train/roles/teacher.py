"""The teacher of on-policy distillation: a frozen model that scores the policy's own tokens.

Consumes the teacher's folder; produces passes over micro-batches. The teacher never changes, so no checkpoint
contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from yatt_core.engines.train.model.passes import TokenPasses
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.batch import ExperienceBatch
from yatt_core.spec.sections.algorithm import DistillationSpec


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher.

    passes: run the teacher's module at the sampling temperature.
    rows: number of rows of the teacher's embedding.
    """

    module: nn.Module
    passes: TokenPasses
    rows: int

    def require_known(self, batch: ExperienceBatch) -> None:
        """Raises `DataError` for a token beyond the teacher's embedding.

        The embeddings of models with the same tokenizer may be padded differently.
        """
        for tokens in (batch.prompt_tokens, batch.response_tokens):
            if len(tokens) and (highest := int(tokens.max())) >= self.rows:
                raise DataError(
                    f"algorithm.distillation.teacher: the experience has token {highest}, but the teacher has {self.rows}"
                    " tokens; the policy sampled a token outside the tokenizer"
                )


def load_teacher(spec: DistillationSpec, load: Callable[[str], nn.Module]) -> nn.Module:
    """Loads the frozen module. Raises `ConfigurationError` for a folder that cannot be loaded.

    load: loads a causal language model from a folder and freezes it.
    """
    try:
        return load(spec.teacher.path)
    except ConfigurationError as error:
        raise ConfigurationError(f"algorithm.distillation.teacher.path: {error}") from error


def rows_of(module: nn.Module) -> int:
    """Returns the number of rows of a model's embedding."""
    embedding: Any = module.get_input_embeddings()  # type: ignore[operator]
    return int(embedding.weight.shape[0])
