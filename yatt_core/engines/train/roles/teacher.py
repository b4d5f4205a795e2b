"""The teachers of on-policy distillation: frozen models that score the policy's own tokens.

Consumes the teachers' folders; produces passes over micro-batches. A teacher never changes, so no checkpoint
contains it; only those of the current iteration are held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from yatt_core.engines.train.model.passes import TokenPasses
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.spec.sections.distillation import DistillationSpec


@dataclass(frozen=True, slots=True)
class Teacher:
    """A teacher.

    passes: run the teacher's module at the sampling temperature.
    rows: number of rows of the teacher's embedding.
    """

    module: nn.Module
    passes: TokenPasses
    rows: int

    def require_known(self, highest: int) -> None:
        """Raises `DataError` for a token beyond the teacher's embedding.

        The embeddings of models with the same tokenizer may be padded differently.

        highest: the highest token of the experience.
        """
        if highest >= self.rows:
            raise DataError(
                f"algorithm.distillation.teachers: the experience has token {highest}, but a teacher has {self.rows}"
                " tokens; the policy sampled a token outside the tokenizer"
            )


class Teachers:
    """The teachers of one iteration at a time.

    load: loads a causal language model from a folder, freezes it, and makes its passes; all ranks call it together.
    """

    def __init__(self, spec: DistillationSpec, load: Callable[[str], Teacher]) -> None:
        self._spec = spec
        self._load = load
        self._loaded: dict[str, Teacher] = {}

    @property
    def modules(self) -> list[nn.Module]:
        """The models that this rank holds now."""
        return [teacher.module for teacher in self._loaded.values()]

    def of(self, iteration: int) -> list[tuple[Teacher, float]]:
        """Returns an iteration's teachers with their weights; those of other iterations are dropped first.

        Raises `ConfigurationError` for a folder that cannot be loaded.
        """
        wanted = self._spec.of(iteration)
        paths = {each.model.path for each in wanted}
        self._loaded = {path: teacher for path, teacher in self._loaded.items() if path in paths}
        for number, each in enumerate(self._spec.teachers):
            if each in wanted and each.model.path not in self._loaded:
                self._loaded[each.model.path] = self._teacher(number, each.model.path)
        return [(self._loaded[each.model.path], each.weight) for each in wanted]

    def _teacher(self, number: int, path: str) -> Teacher:
        try:
            return self._load(path)
        except ConfigurationError as error:
            raise ConfigurationError(f"algorithm.distillation.teachers.{number}.model.path: {error}") from error


def rows_of(module: nn.Module) -> int:
    """Returns the number of rows of a model's embedding."""
    embedding: Any = module.get_input_embeddings()  # type: ignore[operator]
    return int(embedding.weight.shape[0])
