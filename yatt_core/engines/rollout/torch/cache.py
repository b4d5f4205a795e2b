"""Key/value cache of the decoding loop: one static buffer per layer, in which a row's slots are its positions.

Consumes what a transformers attention module passes to `Cache.update`; produces the keys and values to attend
to. A row starts at slot 0 regardless of its neighbours' lengths, so nothing in its attention depends on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from yatt_core.engines.rollout.torch.sizes import rounded_slots


@dataclass(slots=True)
class CacheWindow:
    """What the next forward pass writes and attends to; shared by all layers.

    Prefill: row `rows[i]` gets the keys of prompt `sources[i]`, for each i < prompts * samples; attention is
        causal within the pass. Decoding: row `rows[i]` writes its one key at slot `positions[i]` and attends
        to its first `slots` slots. Reading again: the same, but the keys are those of some positions of the row `of`, to
        whose slots all of them attend.
    """

    rows: torch.Tensor
    sources: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    slots: int = 0
    of: int | None = None


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, [rows, key/value heads, slots, head size], in a buffer that grows until released."""

    def __init__(self, window: CacheWindow) -> None:
        super().__init__()
        self.window = window
        self.shape = (0, 0)
        self._buffers: list[torch.Tensor] = []

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Lays out the buffers for the current batch; allocates only if this is the largest batch so far."""
        rows, slots = self.shape
        if not self._buffers:
            self._buffers = [torch.empty(0, dtype=states.dtype) for states in (key_states, value_states)]
        views = []
        for index, states in enumerate((key_states, value_states)):
            shape = (rows, states.shape[1], slots, states.shape[3])
            size = math.prod(shape)
            if self._buffers[index].numel() < size or self._buffers[index].device != states.device:
                # Zeros, since a masked slot still contributes 0 * value, so the value must be finite.
                self._buffers[index] = torch.zeros(size, dtype=states.dtype, device=states.device)
            views.append(self._buffers[index][:size].view(shape))
        self.keys, self.values = views
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the pass's keys and values; returns those to attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        if window.positions is None:
            # Padding may extend beyond the cache.
            length = min(key_states.shape[2], self.keys.shape[2])
            self.keys[window.rows, :, :length] = key_states[window.sources, :, :length]
            self.values[window.rows, :, :length] = value_states[window.sources, :, :length]
            return key_states, value_states
        self.keys[window.rows, :, window.positions] = key_states[:, :, 0]
        self.values[window.rows, :, window.positions] = value_states[:, :, 0]
        count = len(window.rows)
        if window.of is not None:
            shown = (
                states[window.of, :, : window.slots].expand(count, -1, -1, -1) for states in (self.keys, self.values)
            )
            keys, values = shown
            return keys, values
        return self.keys[:count, :, : window.slots], self.values[:count, :, : window.slots]

    def release(self) -> None:
        """Frees the buffers; the next batch allocates new ones."""
        self._buffers = []
        self.is_initialized = False
        self.keys = self.values = torch.empty(0)

    def clear(self) -> None:
        """Zeroes the buffers."""
        for buffer in self._buffers:
            buffer.zero_()

    def move(self, sources: torch.Tensor, targets: torch.Tensor, slots: int) -> None:
        """Copies the first slots of the source rows over those of the target rows."""
        for states in (self.keys, self.values):
            states[targets, :, :slots] = states[sources, :, :slots]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the sizes for prefill, which attends only within the pass; decoding supplies its own mask."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Returns 0: positions are always given, never counted."""
        return 0

    def get_max_length(self) -> int:
        """Returns -1: the cache grows."""
        return -1


class SlotCache(Cache):  # type: ignore[misc]
    """The cache of a decode batch; kept between batches so that its memory is allocated once."""

    def __init__(self, layers: int) -> None:
        self.window = CacheWindow(torch.empty(0, dtype=torch.long))
        super().__init__(layers=[SlotLayer(self.window) for _ in range(layers)])

    def clear(self) -> None:
        """Zeroes the cache, so that values written by weights with a NaN never reach later rows."""
        for layer in self.layers:
            layer.clear()

    def release(self) -> None:
        """Frees the cache's memory between two batches."""
        for layer in self.layers:
            layer.release()

    def begin(self, rows: int, slots: int) -> None:
        """Lays out the cache for a batch of rows with at most `slots` positions."""
        for layer in self.layers:
            layer.shape = (rows, rounded_slots(slots))
            layer.is_initialized = False

    def prefill(self, rows: torch.Tensor, sources: torch.Tensor) -> None:
        """Prepares for a pass over prompts; row rows[i] gets what prompt sources[i] of the pass writes."""
        self.window.rows = rows
        self.window.sources = sources
        self.window.positions = None

    def step(self, rows: torch.Tensor, positions: torch.Tensor, slots: int) -> None:
        """Prepares for a pass over one token per row, at these positions."""
        self.window.rows = rows
        self.window.positions = positions
        self.window.slots = slots
        self.window.of = None

    def reread(self, rows: torch.Tensor, positions: torch.Tensor, slots: int, of: int) -> None:
        """Prepares for a pass over several tokens of the row `of`, each by itself.

        rows: that row for each of them, and rows that hold nothing for fillers.
        """
        self.step(rows, positions, slots)
        self.window.of = of

    def move(self, sources: torch.Tensor, targets: torch.Tensor, slots: int) -> None:
        """Moves rows to the places of rows that have left."""
        for layer in self.layers:
            layer.move(sources, targets, slots)
