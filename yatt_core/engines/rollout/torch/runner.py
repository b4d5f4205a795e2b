"""What the decoding loop asks of whoever runs the model: prompts in, one token a row after another, logits out.

A runner holds keys and values by row and by prompt; the loop says which row and which prompt has which place.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.protocols.generation import GenerateRequest

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Room:
    """What a decode batch needs at most. rows: with fillers. prompts, samples: under way at once, and to each prompt.

    prompt_tokens, new_tokens: of the longest. longest: tokens of prompt and response together.
    """

    rows: int
    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    longest: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a decoding step, n of them; fillers at the end. alive: those in front that are no fillers.

    tokens: [n], the last of each so far. positions: [n], where it stands in prompt and response. written: [n], tokens of the
    response that came before it. prompts, samples: [n], the place of the row's prompt, and the row's number within its group.
    """

    tokens: Indices
    positions: Indices
    written: Indices
    prompts: Indices
    samples: Indices
    alive: int


class Runner(Protocol):
    """Runs a model for one decode batch at a time."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's bits depend on the row alone, as long as fillers stand behind it. Only in float32 on cores."""
        ...

    def generating(self) -> AbstractContextManager[None]:
        """What has to hold while it works."""
        ...

    def check(self, positions: int) -> None:
        """Raises `ConfigurationError` for a model that cannot be decoded over so many positions."""
        ...

    def begin(self, room: Room) -> None:
        """Lays out keys and values for a decode batch."""
        ...

    def prefill(
        self, request: GenerateRequest, members: Indices, places: Indices, rows: Sequence[Indices]
    ) -> torch.Tensor:
        """Runs some prompts of one padded length; logits behind each, [members, vocabulary].

        members: their numbers in the request. places: of each prompt. rows: of each prompt's samples.
        """
        ...

    def step(self, rows: Rows) -> torch.Tensor:
        """Runs one token a row; the logits behind it, [n, vocabulary]."""
        ...

    def move_rows(self, sources: Indices, targets: Indices, rows: Rows) -> None:
        """Lets rows take the places of others that have left. rows: all of them, before the move."""
        ...

    def move_prompt(self, source: int, target: int) -> None:
        """Lets a prompt take the place of one whose samples have all left."""
        ...

    def clear(self) -> None:
        """Zeroes what is held: what weights with a NaN once wrote must not reach the rows of later ones.

        Its tensors may be of torch's inference mode, in which batches are decoded.
        """
        ...

    def release(self) -> None:
        """Gives the memory of keys and values back, between two batches."""
        ...
