"""Groups decoding rows by their prompt; each row attends to the prompt and to its own slots under one softmax.

Consumes queries, keys, values and masks; produces the attended values. The single softmax is for GPUs and, on
CPUs, for dtypes below float32: with few bfloat16 queries torch's own kernel spends most of its time on
repacking, unlike plain matrix products. A row's bits may depend on its neighbours, as the bits of its other
products do in such a dtype and on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from yatt_core.bfloat16.products import NATIVE, Products
from yatt_core.engines.dense.aligned import masses_of, scores_of, taken_from


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The rows of each group.

    asking: the row at each place of each group, [prompts * samples].
    places: each row's place in `asking`, [rows].
    in_order: whether every place has a row and the rows are in the order of the places.
    """

    asking: torch.Tensor
    places: torch.Tensor
    samples: int
    in_order: bool

    def spread(self, of_rows: torch.Tensor) -> torch.Tensor:
        """Maps [rows, heads, queries, n] to [prompts, heads, samples * queries, n]."""
        _, heads, queries, size = of_rows.shape
        everyone = of_rows if self.in_order else of_rows.index_select(0, self.asking)
        by_sample = everyone.reshape(-1, self.samples, heads, queries, size)
        return by_sample.transpose(1, 2).reshape(-1, heads, self.samples * queries, size)

    def gather(self, grouped: torch.Tensor) -> torch.Tensor:
        """Maps [prompts, heads, samples * queries, ...] to [rows, heads, queries, ...]."""
        prompts, heads, _, *size = grouped.shape
        by_sample = grouped.view(prompts, heads, self.samples, -1, *size).transpose(1, 2).flatten(0, 1)
        return by_sample if self.in_order else by_sample.index_select(0, self.places)


def attend_jointly(
    queries: torch.Tensor,
    shared: torch.Tensor,
    own: torch.Tensor,
    mask: torch.Tensor,
    groups: RowGroups,
    products: Products = NATIVE,
) -> torch.Tensor:
    """Returns the attended values, [rows, heads, queries, size], in the dtype of the queries.

    queries: [rows, heads, queries, size].
    shared: keys and values of prompts, [2, prompts, heads, slots, size].
    own: keys and values of rows, [2, rows, heads, slots, size].
    mask: [rows, 1, 1, prompt slots + own slots] in float32, 0 or -inf.
    """
    of_shared = groups.gather(_scores(groups.spread(queries), shared[0], products))
    scores = torch.cat([of_shared, _scores(queries, own[0], products)], dim=-1)
    shares = torch.softmax(torch.add(mask, scores, alpha=queries.shape[-1] ** -0.5), dim=-1).to(queries.dtype)
    of_prompt, of_own = torch.tensor_split(shares, (shared.shape[3],), dim=-1)
    return groups.gather(_taken(groups.spread(of_prompt), shared[1], products)) + _taken(of_own, own[1], products)


def attend_in_groups(
    queries: torch.Tensor, shared: torch.Tensor, own: torch.Tensor, mask: torch.Tensor, groups: RowGroups
) -> torch.Tensor:
    """Does what `attend_jointly` does, with the sums of `dense.aligned`: a row's bits are those of a trainer.

    shared, own, mask: in float32; the slots of prompts and of rows each fill whole pieces.
    """
    wide = queries.float()
    of_shared = groups.gather(scores_of(groups.spread(wide), shared[0]))
    masses, total = masses_of(torch.cat([of_shared, scores_of(wide, own[0])], dim=-1), mask)
    of_prompt, of_own = torch.tensor_split(masses, (shared.shape[3],), dim=-1)
    found = groups.gather(taken_from(groups.spread(of_prompt), shared[1]))
    return (taken_from(of_own, own[1], found) / total).to(queries.dtype)


def _scores(queries: torch.Tensor, keys: torch.Tensor, products: Products) -> torch.Tensor:
    # With the keys first, they are read in memory order: several times as fast if only part of the slots is used.
    found = products.bmm(keys.flatten(0, 1), queries.flatten(0, 1).transpose(1, 2))
    return found.transpose(1, 2).view(*queries.shape[:3], keys.shape[2])


def _taken(shares: torch.Tensor, values: torch.Tensor, products: Products) -> torch.Tensor:
    return products.bmm(shares.flatten(0, 1), values.flatten(0, 1)).view(*shares.shape[:3], values.shape[3])
