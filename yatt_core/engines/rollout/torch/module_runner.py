"""The general runner: any dense causal transformers model, through its own module, over a cache of slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from yatt_core.bfloat16.choice import products_of
from yatt_core.bfloat16.modules import matrices_of
from yatt_core.bfloat16.products import Products
from yatt_core.engines.images import ImageReader, ShownPrompts, embed_prompts
from yatt_core.engines.rollout.torch.cache import SlotCache
from yatt_core.engines.rollout.torch.runner import DecodedRows, Indices, Room
from yatt_core.engines.rollout.torch.sizes import MINIMUM_ROWS, REREAD_TOKENS, padded_length, rounded_slots, rows_for
from yatt_core.errors import ConfigurationError
from yatt_core.protocols.generation import GenerateRequest

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


class ModuleRunner:
    """Implements `Runner`.

    reader: reads a vision-language model's images.
    products: multiply matrices; None for those of the model's type on its device.
    """

    def __init__(self, model: nn.Module, reader: ImageReader | None = None, products: Products | None = None) -> None:
        self._model = model
        self._reader = reader
        self._config = text_config(model)
        self._cache = SlotCache(self._config.num_hidden_layers)
        parameter = next(model.parameters())
        self._device = parameter.device
        self._visible = torch.zeros((), dtype=parameter.dtype, device=self._device)
        self._hidden = torch.full((), -torch.inf, dtype=parameter.dtype, device=self._device)
        self._products = products or products_of(parameter.dtype, self._device)
        self._multiplying = self._products.in_modules()

    @property
    def batch_invariant(self) -> bool:
        """False with experts, which see few rows each, or positions scaled by the longest row; see `keeps_bits`."""
        if not keeps_bits(self._visible):
            return False
        rope = getattr(self._config, "rope_parameters", None) or {}
        experts = any(getattr(self._config, key, None) for key in EXPERT_KEYS)
        return not experts and rope.get("rope_type") not in ("dynamic", "longrope")

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._device

    @contextmanager
    def generating(self) -> Iterator[None]:
        """Disables dropout and activation checkpointing within the context."""
        training = self._model.training
        if training:
            self._model.eval()
        try:
            yield
        finally:
            if training:
                self._model.train()

    def check(self, positions: int) -> None:
        """Raises `ConfigurationError` unless the model's attention is plain causal over this many positions."""
        check_positions(self._config, positions)

    def begin(self, room: Room) -> None:
        """Lays out a slot for each position of each row; widens the current matrices if products are widened."""
        self._multiplying = self._products.in_modules()  # frees the last batch's copies first
        self._multiplying = self._products.in_modules(matrices_of(self._model))
        self._rows = torch.arange(room.rows, device=self._device)
        self._slots = torch.arange(rounded_slots(room.longest), device=self._device)
        self._cache.begin(room.rows, room.longest)

    def prefill(
        self, request: GenerateRequest, members: Indices, places: Indices, rows: Sequence[Indices]
    ) -> torch.Tensor:
        """Runs some prompts of one padded length; copies each prompt's keys to its rows."""
        lengths = np.array([len(request.prompts[member]) for member in members], np.int64)
        padded = padded_length(int(lengths[0]))
        sources = np.repeat(np.arange(len(members)), [len(own) for own in rows])
        self._cache.prefill(self._tensor(np.concatenate(rows)), self._tensor(sources))
        ends, end_of_member = np.unique(lengths - 1, return_inverse=True)
        # The head must have four rows, too.
        ends = np.resize(ends, max(len(ends), -(-MINIMUM_ROWS // len(members))))
        with self._multiplying:
            logits = self._model(
                **self._prompt_inputs(
                    request, members, lengths, self._tensor(padded_prompts(request, members, padded))
                ),
                # Padding may extend beyond the positions that the model supports.
                position_ids=torch.arange(padded, device=self._device)[None, :].clamp_(max=int(lengths.max())),
                cache=self._cache,
                use_cache=True,
                logits_to_keep=self._tensor(ends),
            ).logits
        picked: torch.Tensor = logits[self._tensor(np.arange(len(members))), self._tensor(end_of_member)]
        return picked

    def step(self, rows: DecodedRows) -> torch.Tensor:
        """Runs one token per row."""
        positions = self._tensor(rows.positions)
        slots = rounded_slots(int(rows.positions.max()) + 1)
        self._cache.step(self._rows[: len(rows.positions)], positions, slots)
        return self._one_token_each(rows.tokens, positions, slots)

    def _one_token_each(self, tokens: torch.Tensor, positions: torch.Tensor, slots: int) -> torch.Tensor:
        """Runs a pass over one token per row, for which the cache is prepared; returns the logits, [n, vocabulary]."""
        shown = self._slots[:slots] <= positions[:, None]
        with self._multiplying:
            logits: torch.Tensor = self._model(
                input_ids=tokens[:, None],
                position_ids=positions[:, None],
                attention_mask=torch.where(shown, self._visible, self._hidden)[:, None, None, :],
                cache=self._cache,
                use_cache=True,
            ).logits
        return logits[:, -1]

    def reread(self, tokens: Indices, row: int, place: int, before: int) -> None:
        """Reads tokens as so many rows, each of which attends to the row's slots up to its own."""
        for start in range(0, len(tokens), REREAD_TOKENS):
            part = tokens[start : start + REREAD_TOKENS]
            count = rows_for(len(part), self.batch_invariant)
            read = np.arange(count) < len(part)
            positions = np.where(read, before + start + np.arange(count), 0)
            ids = np.zeros(count, np.int64)
            ids[: len(part)] = part
            # The last row is never a response's.
            rows = np.where(read, row, len(self._rows) - 1)
            slots = rounded_slots(before + start + len(part))
            self._cache.reread(self._tensor(rows), self._tensor(positions), slots, row)
            self._one_token_each(self._tensor(ids), self._tensor(positions), slots)

    def move_rows(self, sources: Indices, targets: Indices, rows: DecodedRows) -> None:
        """Copies the slots that the moved rows have filled."""
        slots = rounded_slots(int(rows.positions[sources].max()) + 1)
        self._cache.move(self._tensor(sources), self._tensor(targets), slots)

    def move_prompt(self, source: int, target: int) -> None:
        """Does nothing: each row holds its prompt's keys."""

    @torch.inference_mode()
    def clear(self) -> None:
        """Zeroes the cache."""
        self._cache.clear()

    def release(self) -> None:
        """Frees the memory of the cache and of copies of matrices."""
        self._multiplying = self._products.in_modules()
        self._cache.release()

    def _prompt_inputs(
        self, request: GenerateRequest, members: Indices, lengths: Indices, ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Returns the model's inputs for some prompts: tokens or, with images, embeddings of tokens and patches."""
        media = [request.media[member] if request.media else () for member in members]
        if self._reader is None and not any(media):
            return {"input_ids": ids}
        names = [f"prompt {member} of the decode batch" for member in members]
        questions = request.question_lengths
        within = lengths if questions is None else questions[members].astype(np.int64)
        shown = ShownPrompts(self._tensor(within), media, names)
        return {"inputs_embeds": embed_prompts(self._model, self._reader, ids, shown)}

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def keeps_bits(weight: torch.Tensor) -> bool:
    """Returns True if a row's products with this matrix have the same bits for any number of rows.

    A GPU's order of addition depends on the number of rows.
    """
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


def padded_prompts(request: GenerateRequest, members: Indices, padded: int) -> npt.NDArray[np.int64]:
    """Returns the tokens of some prompts, [members, padded]."""
    ids = np.zeros((len(members), padded), np.int64)
    for row, member in enumerate(members):
        prompt = request.prompts[member]
        ids[row, : len(prompt)] = prompt
    return ids


def text_config(model: nn.Module) -> Any:
    """Returns the text model's config of a transformers module."""
    config: Any = model.config
    return config.get_text_config()


def check_positions(config: Any, positions: int) -> None:
    """Raises `ConfigurationError` unless the model's attention is plain causal attention over this many positions."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise ConfigurationError(f"the torch rollout engine cannot decode layers of type {', '.join(sorted(unknown))}")
    if window is not None and (not kinds or "sliding_attention" in kinds) and positions > window:
        raise ConfigurationError(
            f"the torch rollout engine does not support sliding windows: prompt and response may have {positions}"
            f" tokens, but the model's window is {window}; lower data.max_prompt_tokens or rollout.max_new_tokens"
        )
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and positions > limit:
        raise ConfigurationError(
            f"prompt and response may have {positions} tokens, but the model takes at most {limit}; lower"
            " data.max_prompt_tokens or rollout.max_new_tokens"
        )
