"""The fast runner: dense Llama and Qwen models on our own kernels; a prompt's keys and values are held once per group.

All rows of a group attend to their prompt in one operation; each row attends to its own tokens separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.functional import pad

from yatt_core.bfloat16.choice import products_of
from yatt_core.bfloat16.products import Products
from yatt_core.engines.dense.aligned import aligned_products, attend_aligned, causal_mask, require_cores
from yatt_core.engines.dense.arithmetic import rms_norm
from yatt_core.engines.dense.layers import Multiply, run_layers
from yatt_core.engines.dense.pieces import whole_pieces
from yatt_core.engines.dense.rotary import RotaryTable
from yatt_core.engines.dense.shape import shape_of
from yatt_core.engines.dense.weights import dense_weights, joined
from yatt_core.engines.images import text_alone
from yatt_core.engines.rollout.torch.joint_attention import RowGroups, attend_in_groups, attend_jointly
from yatt_core.engines.rollout.torch.module_runner import check_positions, keeps_bits, padded_prompts, text_config
from yatt_core.engines.rollout.torch.packed_weights import packable, packed, packed_linear, widened
from yatt_core.engines.rollout.torch.runner import DecodedRows, Indices, Room
from yatt_core.engines.rollout.torch.sizes import REREAD_TOKENS, blocks_of, padded_length, rounded_slots, rows_for
from yatt_core.engines.rollout.torch.split_attention import attend_by_pieces, join
from yatt_core.protocols.generation import GenerateRequest


class Store:
    """Keys and values of all layers, [layers, 2, places, heads, slots, size], in a buffer that grows until released."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(0, dtype=dtype, device=device)
        self.states = self._buffer

    def begin(self, shape: tuple[int, ...]) -> None:
        """Lays out the buffer; allocates only if this is the largest layout so far."""
        size = math.prod(shape)
        if self._buffer.numel() < size:
            # Zeros, since a masked slot still contributes 0 * value, so the value must be finite.
            self._buffer = self._buffer.new_zeros(size)
        self.states = self._buffer[:size].view(shape)

    def widen(self, slots: int) -> None:
        """Lays out the buffer again if its places have fewer slots than `slots`; their content is kept."""
        layers, kinds, *places, found, size = self.states.shape
        if found >= slots:
            return
        before = self.states.flatten(0, 1)
        shape = (layers, kinds, *places, slots, size)
        self.states = self._buffer[: math.prod(shape)].view(shape)
        # From the end, where there is free space: nothing is overwritten before it has been read.
        for number in reversed(range(layers * kinds)):
            self.states.flatten(0, 1)[number, ..., :found, :] = before[number].clone()

    def move(self, sources: Any, targets: Any, slots: int) -> None:
        """Copies the first slots of the source places over those of the target places."""
        self.states[:, :, targets, :, :slots] = self.states[:, :, sources, :, :slots]

    def clear(self) -> None:
        """Zeroes the buffer."""
        self._buffer.zero_()

    def release(self) -> None:
        """Frees the buffer."""
        self._buffer = self.states = self._buffer.new_empty(0)


class DenseRunner:
    """Implements `Runner` on the module's current weights; its fused matrices are views wherever possible.

    products: multiply matrices; None for those of the model's type on its device.
    aligned: whether tokens have the log-probabilities of an aligned trainer, to the last bit (`dense.aligned`); on CPUs only.
    """

    def __init__(self, model: nn.Module, products: Products | None = None, aligned: bool = False) -> None:
        self._shape = shape_of(model)
        self._config = text_config(model)
        parameters = dict(model.named_parameters())
        self._weights = dense_weights(
            parameters, self._shape.layers, lambda names: joined([parameters[name] for name in names])
        )
        self._device = self._weights.embedding.device
        self._dtype = self._weights.embedding.dtype
        self._aligned = aligned
        if aligned:
            require_cores(self._device)
        # Only attention in pieces keeps a row's bits independent of its batch.
        self._jointly = not self.batch_invariant
        # On a CPU, a product with only part of the slots would first copy that part.
        self._whole = self._jointly and self._device.type == "cpu"
        # The matrices in use: the weights themselves, or copies made for a decode batch.
        self._multiplied = self._weights
        if aligned:
            products = aligned_products(self._dtype)
        self._products = products or products_of(self._dtype, self._device)
        self._packs = not self._products.widens and packable(self._weights.embedding)
        self._multiply: Multiply = packed_linear if self._packs else self._products.linear
        self._rotary = RotaryTable(model, self._dtype)
        held = self._products.holding(self._dtype)
        self._prompts = Store(held, self._device)
        self._own = Store(held, self._device)
        self._lengths = np.zeros(0, np.int64)

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's bits do not depend on its batch; see `rows`."""
        return self._aligned or keeps_bits(self._weights.embedding)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._device

    def generating(self) -> AbstractContextManager[None]:
        """Does nothing: there is no dropout."""
        return nullcontext()

    def check(self, positions: int) -> None:
        """Raises `ConfigurationError` for more positions than the model supports."""
        check_positions(self._config, positions)

    def begin(self, room: Room) -> None:
        """Lays out the slots of prompts and rows; packs or widens the current weights where that pays off."""
        shape = self._shape
        self._multiplied = self._weights  # frees the last batch's copies first
        if self._packs:
            self._multiplied = packed(self._weights, room.rows)
        elif self._products.widens:
            self._multiplied = widened(self._weights)
        self._group = blocks_of(room.samples)
        self._lengths = np.ones(room.prompts, np.int64)
        slots = self._slots(room.prompt_tokens), self._slots(room.new_tokens)
        for store, places, count in zip((self._prompts, self._own), (room.prompts, room.rows), slots, strict=True):
            store.begin((shape.layers, 2, places, shape.key_value_heads, count, shape.head_size))
        if self._whole:
            # The buffer now has room for all slots; lay it out for the slots that the rows have reached.
            self._own.begin((shape.layers, 2, room.rows, shape.key_value_heads, rounded_slots(1), shape.head_size))

    def prefill(
        self, request: GenerateRequest, members: Indices, places: Indices, rows: Sequence[Indices]
    ) -> torch.Tensor:
        """Runs some prompts of one padded length; keeps each prompt's keys at its place."""
        for member in members if request.media else ():
            if request.media[member]:
                raise text_alone(f"prompt {member} of the decode batch")
        shape = self._shape
        count = len(members)
        lengths = np.array([len(request.prompts[member]) for member in members], np.int64)
        padded = padded_length(int(lengths[0]))
        self._lengths[places] = lengths
        targets = self._tensor(places)
        states = self._prompts.states
        kept = min(padded, states.shape[4])

        def attend(layer: int, heads: torch.Tensor) -> torch.Tensor:
            split = heads.view(count, padded, shape.all_heads, shape.head_size).transpose(1, 2)
            queries, keys, values = torch.split(split, shape.parts, dim=1)
            states[layer, 0, targets, :, :kept] = self._products.operand(keys[:, :, :kept])
            states[layer, 1, targets, :, :kept] = self._products.operand(values[:, :, :kept])
            grouped = shape.heads != shape.key_value_heads
            if self._aligned:
                return self._aligned_prompts(queries, keys, values)
            attended = self._products.attention(queries, keys, values, is_causal=True, enable_gqa=grouped)
            return attended.transpose(1, 2).reshape(count * padded, -1)

        # Padding may extend beyond the positions that the model supports.
        positions = np.tile(np.minimum(np.arange(padded), lengths.max()), count)
        tokens = self._tensor(padded_prompts(request, members, padded).reshape(-1))
        hidden = self._run(tokens, positions, attend)
        # The head gets fillers, too.
        ends = np.resize(np.arange(count) * padded + lengths - 1, rows_for(count, self.batch_invariant))
        return self._logits(hidden[self._tensor(ends)])[:count]

    def step(self, rows: DecodedRows) -> torch.Tensor:
        """Runs one token per row."""
        shape = self._shape
        count = len(rows.tokens)
        prompts = int(rows.prompts.max()) + 1
        written = self._tensor(rows.written)
        slots = self._slots(int(rows.written.max()) + 1)
        if self._whole:
            self._own.widen(slots)
        numbers = self._tensor(np.arange(count))
        groups = self._groups(rows)
        own_mask = self._mask(rows.written + 1, slots)
        prompt_slots = self._slots(int(self._lengths[:prompts].max()))
        prompt_mask = self._mask(self._lengths[:prompts], prompt_slots)
        whole_mask = torch.cat([prompt_mask[self._tensor(rows.prompts)], own_mask], dim=-1)

        def attend(layer: int, heads: torch.Tensor) -> torch.Tensor:
            queries = heads[:, : shape.heads]
            others = heads[:, shape.heads :]
            own = self._own.states[layer]
            shared = self._prompts.states[layer, :, :prompts, :, :prompt_slots]
            new = others.view(count, 2, shape.key_value_heads, shape.head_size)
            own[:, numbers, :, written] = self._products.operand(new)
            return self._attended(
                queries=queries.reshape(count, shape.key_value_heads, -1, shape.head_size),
                shared=shared,
                own=own[:, :count, :, :slots],
                masks=(prompt_mask, own_mask, whole_mask),
                groups=groups,
            )

        return self._logits(self._run(rows.tokens, rows.positions, attend))

    def reread(self, tokens: Indices, row: int, place: int, before: int) -> None:
        """Reads tokens as so many rows, each of which attends to the prompt and to the response's tokens up to its own."""
        for start in range(0, len(tokens), REREAD_TOKENS):
            self._reread(tokens[start : start + REREAD_TOKENS], start, row, place)

    def _reread(self, tokens: Indices, start: int, row: int, place: int) -> None:
        """Reads some tokens behind the first `start` ones."""
        shape = self._shape
        taken = len(tokens)
        # Fillers make whole blocks of queries; they read token 0 behind the prompt, and nothing of them is kept.
        count = blocks_of(rows_for(taken, self.batch_invariant))
        read = np.arange(count) < taken
        written = np.where(read, start + np.arange(count), 0)
        ids = np.zeros(count, np.int64)
        ids[:taken] = tokens
        slots = self._slots(start + taken)
        if self._whole:
            self._own.widen(slots)
        length = int(self._lengths[place])
        prompt_slots = self._slots(length)
        prompt_mask = self._mask(np.array([length]), prompt_slots)
        own_mask = self._mask(written + 1, slots)
        whole_mask = torch.cat([prompt_mask.expand(count, -1, -1, -1), own_mask], dim=-1)
        numbers = self._tensor(np.arange(count))
        groups = RowGroups(asking=numbers, places=numbers, samples=count, in_order=True)

        def attend(layer: int, heads: torch.Tensor) -> torch.Tensor:
            queries = heads[:, : shape.heads].reshape(count, shape.key_value_heads, -1, shape.head_size)
            new = heads[:taken, shape.heads :].view(taken, 2, shape.key_value_heads, shape.head_size)
            states = self._own.states[layer, :, row]
            states[:, :, start : start + taken] = self._products.operand(new).permute(1, 2, 0, 3)
            own = states[:, None, :, :slots].expand((-1, count, -1, -1, -1))
            shared = self._prompts.states[layer, :, place : place + 1, :, :prompt_slots]
            return self._attended(
                queries=queries, shared=shared, own=own, masks=(prompt_mask, own_mask, whole_mask), groups=groups
            )

        self._run(self._tensor(ids), length + written, attend)

    def move_rows(self, sources: Indices, targets: Indices, rows: DecodedRows) -> None:
        """Copies the slots that the moved rows have filled."""
        slots = rounded_slots(int(rows.written[sources].max()) + 1)
        self._own.move(self._tensor(sources), self._tensor(targets), slots)

    def move_prompt(self, source: int, target: int) -> None:
        """Copies the prompt's keys and values."""
        self._prompts.move(source, target, rounded_slots(int(self._lengths[source])))
        self._lengths[target] = self._lengths[source]

    @torch.inference_mode()
    def clear(self) -> None:
        """Zeroes all keys and values."""
        self._prompts.clear()
        self._own.clear()

    def release(self) -> None:
        """Frees the memory of keys, values and copies of weights."""
        self._multiplied = self._weights
        self._prompts.release()
        self._own.release()

    def _run(self, tokens: torch.Tensor, positions: Indices, attend: Any) -> torch.Tensor:
        rotary = self._rotary.at(self._tensor(positions), int(positions.max()) + 1)
        embedded = self._weights.embedding[tokens].float()
        return run_layers(
            weights=self._multiplied,
            shape=self._shape,
            hidden=embedded,
            rotary=rotary,
            attend=attend,
            dtype=self._dtype,
            multiply=self._multiply,
        )

    def _attended(
        self,
        queries: torch.Tensor,
        shared: torch.Tensor,
        own: torch.Tensor,
        masks: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        groups: RowGroups,
    ) -> torch.Tensor:
        """Attends from each row to its prompt and to its own slots: [rows, heads * size].

        queries, shared, own: as `attend_jointly` takes them.
        masks: of the prompts' slots, [prompts, 1, 1, slots], of the rows' own, [rows, 1, 1, slots], and of both, by row.
        """
        of_prompts, of_own, of_both = masks
        if self._aligned:
            found = attend_in_groups(queries=queries, shared=shared, own=own, mask=of_both, groups=groups)
            return found.reshape(len(queries), -1)
        if self._jointly:
            joint = attend_jointly(
                queries=queries, shared=shared, own=own, mask=of_both, groups=groups, products=self._products
            )
            return joint.reshape(len(queries), -1)
        parts = [
            (groups.gather(taken), groups.gather(sums))
            for taken, sums in attend_by_pieces(groups.spread(queries), shared[0], shared[1], of_prompts)
        ]
        parts += attend_by_pieces(queries, own[0], own[1], of_own)
        return join(parts).reshape(len(queries), -1)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        states = rms_norm(hidden, self._weights.norm, self._shape.epsilon, self._dtype)
        return self._multiply(states, self._multiplied.head, None)

    def _aligned_prompts(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attends from prompts to themselves, [count * padded, heads * size], in whole pieces of slots."""
        count, _, padded, _ = queries.shape
        slots = whole_pieces(padded)
        keys, values = (pad(states, (0, 0, 0, slots - padded)).transpose(1, 2) for states in (keys, values))
        mask = causal_mask(padded, slots, self._device)
        return attend_aligned(queries.transpose(1, 2), keys, values, mask).reshape(count * padded, -1)

    def _slots(self, positions: int) -> int:
        """Returns the number of slots that attention covers for this many positions."""
        return whole_pieces(positions) if self._aligned else rounded_slots(positions)

    def _groups(self, rows: DecodedRows) -> RowGroups:
        # A crowd's prompts have unequal numbers of samples.
        group = max(self._group, blocks_of(int(rows.samples.max()) + 1))
        places = rows.prompts * group + rows.samples
        # Places of a group that have no row use the last row.
        asking = np.full((int(rows.prompts.max()) + 1) * group, len(places) - 1)
        asking[places[: rows.alive]] = np.arange(rows.alive)
        in_order = np.array_equal(places, np.arange(len(asking)))
        return RowGroups(self._tensor(asking), self._tensor(places), group, in_order)

    def _mask(self, lengths: Indices, slots: int) -> torch.Tensor:
        """Returns 0 for the first slots of each row and -inf for the others: [rows, 1, 1, slots]."""
        hidden = torch.arange(slots, device=self._device) >= self._tensor(lengths)[:, None]
        mask = torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, -torch.inf)
        return mask[:, None, None]

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
