"""Samples as unpadded rows in which each prompt appears once, regardless of how many of the samples answer it.

Consumes a micro-batch; produces its concatenated tokens, and the few attention calls in which each token
attends to its own sample. A prompt's activations are the same for all of its samples, and its gradients are
summed; the last token of a response needs no row. Only attention pads, and only sequences of similar length
share a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.bfloat16.products import Products
from yatt_core.engines.dense.aligned import attend_aligned, causal_mask
from yatt_core.engines.dense.attention import attend_masked
from yatt_core.engines.dense.pieces import FEWEST_ROWS, whole_pieces
from yatt_core.engines.dense.shape import DenseShape
from yatt_core.engines.train.model.forward import MicroBatch, places_of
from yatt_core.wire.ragged import offsets_of

Int64 = npt.NDArray[np.int64]

SLACK_TOKENS = 8
SLACK_SHARE = 4
"""Sequences share an attention call if the shortest is at most this many tokens, or 1/4, shorter than the longest."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """b sequences of n queries over at most m keys.

    queries, keys: row numbers, [b, n] and [b, m].
    mask: [b or 1, 1, n, m], 0 or -inf; None if n = m and attention is causal.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None

    def on(self, device: torch.device) -> AttentionCall:
        """Returns the call with its tensors on a device."""
        mask = None if self.mask is None else self.mask.to(device)
        return AttentionCall(self.queries.to(device), self.keys.to(device), mask)


@dataclass(frozen=True, slots=True)
class SharedRows:
    """R rows.

    tokens, positions: [R].
    predicting: [T], the row whose output predicts each counted token of the micro-batch.
    positions_below: one more than the highest position.
    calls: attention calls, the prompts' first.
    outputs: [R], each row's place among the queries of all calls.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    predicting: torch.Tensor
    positions_below: int
    calls: tuple[AttentionCall, ...]
    outputs: torch.Tensor

    def on(self, device: torch.device) -> SharedRows:
        """Returns the rows with their tensors on a device."""
        if self.tokens.device == device:
            return self
        tokens, positions, predicting, outputs = (
            each.to(device) for each in (self.tokens, self.positions, self.predicting, self.outputs)
        )
        calls = tuple(call.on(device) for call in self.calls)
        return SharedRows(
            tokens=tokens,
            positions=positions,
            predicting=predicting,
            positions_below=self.positions_below,
            calls=calls,
            outputs=outputs,
        )


def share_rows(batch: MicroBatch, dtype: torch.dtype, aligned: bool = False) -> SharedRows:
    """Merges equal prompts of a micro-batch.

    dtype: of the attention masks.
    aligned: whether keys are laid out as an aligned sampler does (`dense.aligned`), and fillers follow the last row.
    """
    flat = batch.tokens.flatten().numpy()
    starts = batch.starts
    prompts = batch.prompt_lengths
    responses = batch.sizes - batch.prompt_lengths
    first, number = _distinct([flat[a:b].tobytes() for a, b in zip(starts, starts + prompts, strict=True)])
    prompt_begins = offsets_of(prompts[first])
    response_begins = prompt_begins[-1] + offsets_of(responses)
    sources = np.concatenate([places_of(starts[first], prompts[first]), places_of(starts + prompts, responses)])
    row_of = np.zeros(len(flat), dtype=np.int64)
    row_of[places_of(starts, prompts)] = places_of(prompt_begins[number], prompts)
    row_of[places_of(starts + prompts, responses)] = np.arange(prompt_begins[-1], response_begins[-1])
    within = [places_of(np.zeros_like(prompts[first]), prompts[first]), places_of(prompts, responses)]
    positions = np.concatenate(within)
    calls = [
        *_prompt_calls(prompt_begins, prompts[first], aligned),
        *_response_calls(
            begins=response_begins,
            lengths=responses,
            prompt_begins=prompt_begins[number],
            prompts=prompts,
            dtype=dtype,
            aligned=aligned,
        ),
    ]
    fillers = _fillers(len(sources)) if aligned else 0
    return SharedRows(
        tokens=torch.from_numpy(np.pad(flat[sources], (0, fillers))),
        positions=torch.from_numpy(np.pad(positions, (0, fillers))),
        predicting=torch.from_numpy(row_of[batch.predicting.numpy()]),
        positions_below=int(positions.max()) + 1,
        calls=tuple(call for call, _ in calls),
        outputs=torch.from_numpy(np.pad(_outputs(calls, len(sources)), (0, fillers))),
    )


def attend(
    shape: DenseShape, rows: SharedRows, heads: torch.Tensor, products: Products, aligned: bool = False
) -> torch.Tensor:
    """Attends from each row to its own sample; returns [R, queries * size].

    heads: [R, queries + keys + values, size].
    aligned: as the rows were made.
    """
    queries, others = torch.split(heads, [shape.heads, 2 * shape.key_value_heads], dim=1)
    outputs = []
    for call in rows.calls:
        count, length = call.queries.shape
        asked = queries.index_select(0, call.queries.flatten()).view(count, length, *queries.shape[1:])
        seen = others.index_select(0, call.keys.flatten()).view(count, call.keys.shape[1], *others.shape[1:])
        keys, values = torch.split(seen, shape.key_value_heads, dim=2)
        if aligned and call.mask is not None:
            found = attend_aligned(asked, keys, values, call.mask)
        else:
            found = attend_masked(queries=asked, keys=keys, values=values, mask=call.mask, products=products)
        outputs.append(found.reshape(count * length, -1))
    return torch.cat(outputs).index_select(0, rows.outputs)


def _distinct(keys: list[bytes]) -> tuple[Int64, Int64]:
    """Returns the indices of first occurrences, and each item's number among the distinct ones."""
    numbers: dict[bytes, int] = {}
    number = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    return np.unique(number, return_index=True)[1], number


def _alike(lengths: Int64) -> Iterator[Int64]:
    """Groups sequences of similar length, longest first; sequences without tokens are left out."""
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    while len(order):
        longest = int(lengths[order[0]])
        count = int(np.count_nonzero(longest - lengths[order] <= max(SLACK_TOKENS, longest // SLACK_SHARE)))
        yield order[:count]
        order = order[count:]


def _padded(begins: Int64, lengths: Int64, pieces: bool = False) -> Int64:
    """Returns the rows of some sequences, [sequences, longest]; a shorter one repeats its last row.

    pieces: whether the width fills whole pieces of an aligned attention.
    """
    longest = int(lengths.max())
    within: Int64 = np.minimum(np.arange(whole_pieces(longest) if pieces else longest), lengths[:, None] - 1)
    return begins[:, None] + within


def _fillers(rows: int) -> int:
    """Returns the number of rows to add, at least one: values at the end of a tensor may round as those of no other row."""
    return max(1, FEWEST_ROWS - rows)


def _prompt_calls(begins: Int64, lengths: Int64, aligned: bool) -> Iterator[tuple[AttentionCall, Int64]]:
    """Yields the calls of prompts over themselves, each with the lengths of its sequences."""
    for members in _alike(lengths):
        rows = torch.from_numpy(_padded(begins[members], lengths[members]))
        keys = torch.from_numpy(_padded(begins[members], lengths[members], pieces=True)) if aligned else rows
        mask = causal_mask(rows.shape[1], keys.shape[1], rows.device) if aligned else None
        yield AttentionCall(rows, keys, mask), lengths[members]


def _response_calls(
    begins: Int64, lengths: Int64, prompt_begins: Int64, prompts: Int64, dtype: torch.dtype, aligned: bool
) -> Iterator[tuple[AttentionCall, Int64]]:
    """Yields the calls of responses over their prompts and themselves, each with the lengths of its sequences."""
    for members in _alike(lengths):
        asking = _padded(begins[members], lengths[members])
        own = _padded(begins[members], lengths[members], pieces=aligned)
        before = _padded(prompt_begins[members], prompts[members], pieces=aligned)
        length = asking.shape[1]
        slots = own.shape[1]
        width = before.shape[1]
        shown = np.arange(width) < prompts[members][:, None]
        hidden = np.concatenate(
            [
                np.broadcast_to(~shown[:, None, :], (len(members), length, width)),
                np.broadcast_to(np.triu(np.ones((length, slots), np.bool_), 1), (len(members), length, slots)),
            ],
            axis=2,
        )
        of_type = torch.float32 if aligned else dtype
        mask = torch.zeros(hidden.shape, dtype=of_type).masked_fill_(torch.from_numpy(hidden), -torch.inf)
        keys = torch.from_numpy(np.concatenate([before, own], axis=1))
        yield AttentionCall(torch.from_numpy(asking), keys, mask[:, None]), lengths[members]


def _outputs(calls: list[tuple[AttentionCall, Int64]], rows: int) -> Int64:
    """Returns each row's place among the queries of all calls."""
    places = np.zeros(rows, dtype=np.int64)
    begin = 0
    for call, lengths in calls:
        count, length = call.queries.shape
        real = np.arange(length) < lengths[:, None]
        places[call.queries.numpy()[real]] = begin + np.arange(count * length).reshape(count, length)[real]
        begin += count * length
    return places
