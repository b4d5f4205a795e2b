"""The interface between the decoding loop and a model's runner: prompts in, one token per row and step, logits out.

A runner holds keys and values by row and by prompt; the loop assigns each row and each prompt its place.
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
    """The maximum sizes of a decode batch.

    rows: number of rows, including fillers.
    prompts: number of prompts in progress at the same time.
    samples: number of samples per prompt.
    prompt_tokens, new_tokens: lengths of the longest prompt and of the longest response.
    longest: maximum length of prompt and response together, in tokens.
    """

    rows: int
    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    longest: int


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The n rows of a decoding step; fillers are at the end.

    tokens: [n] int64 on the runner's device, the last token of each row so far.
    positions: [n], that token's position in prompt and response.
    written: [n], number of response tokens before that token.
    prompts, samples: [n], the place of the row's prompt, and the row's number within its group.
    alive: number of rows that are not fillers.
    """

    tokens: torch.Tensor
    positions: Indices
    written: Indices
    prompts: Indices
    samples: Indices
    alive: int


class Runner(Protocol):
    """Runs a model for one decode batch at a time."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row followed by fillers has the same bits in any batch; possible only in float32 on a CPU."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that it computes on."""
        ...

    def generating(self) -> AbstractContextManager[None]:
        """Returns the context in which the runner generates."""
        ...

    def check(self, positions: int) -> None:
        """Raises `ConfigurationError` for a model that cannot be decoded over this many positions."""
        ...

    def begin(self, room: Room) -> None:
        """Lays out keys and values for a decode batch."""
        ...

    def prefill(
        self, request: GenerateRequest, members: Indices, places: Indices, rows: Sequence[Indices]
    ) -> torch.Tensor:
        """Runs some prompts of one padded length; returns the logits after each, [members, vocabulary].

        members: the prompts' indices in the request.
        places: each prompt's place.
        rows: the rows of each prompt's samples.
        """
        ...

    def step(self, rows: DecodedRows) -> torch.Tensor:
        """Runs one token per row; returns the logits after it, [n, vocabulary]."""
        ...

    def reread(self, tokens: Indices, row: int, place: int, before: int) -> None:
        """Reads tokens of a response that another engine has drawn, behind its prompt, which has been run.

        Its keys and values get the bits that `step` would give them, token by token, if the runner is `batch_invariant`.

        tokens: all but the newest, which the next step reads.
        place: of its prompt, for a runner that holds the keys of a prompt once for all of its samples.
        before: the prompt's length, for one that holds them in each row.
        """
        ...

    def move_rows(self, sources: Indices, targets: Indices, rows: DecodedRows) -> None:
        """Moves rows to the places of rows that have left.

        rows: all rows, before the move.
        """
        ...

    def move_prompt(self, source: int, target: int) -> None:
        """Moves a prompt to the place of one whose samples have all left."""
        ...

    def clear(self) -> None:
        """Zeroes keys and values, so that values written by weights with a NaN never reach later rows.

        Their tensors may belong to torch's inference mode, in which batches are decoded.
        """
        ...

    def release(self) -> None:
        """Frees the memory of keys and values between two batches."""
        ...
