"""The models of knowledge graphs: where an entity with a relation expects the other end of a triple, and how near one is.

Consumes entities' vectors and the parameters of relations; produces queries, of the same width, and scores, of which higher ones
are more plausible. A query of the tail starts from the head, and one of the head, the inverse, from the tail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch.nn.functional import normalize

from yatt_workloads.kge.settings import MemberSettings

SMALLEST = 1e-12
"""Keeps the gradient of a norm finite at zero."""

Parameters = Mapping[str, torch.Tensor]


class EmbeddingModel(Protocol):
    """A model; what it learns beside the entities' vectors is handed to it.

    span: initial entities' vectors lie between -span and span.
    """

    span: float

    def begin(self, relations: int, noise: torch.Generator) -> dict[str, torch.Tensor]:
        """Returns initial parameters of the relations, each [relations, ...]."""
        ...

    def query(self, parameters: Parameters, known: torch.Tensor, relation: torch.Tensor, inverse: bool) -> torch.Tensor:
        """Returns where the other end should lie, [queries, width].

        known: vectors of the known ends, [queries, width].
        relation: numbers of the relations, [queries].
        """
        ...

    def score(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Returns scores, [queries, candidates]. candidates: [queries or 1, candidates, width]."""
        ...


def make_model(settings: MemberSettings) -> EmbeddingModel:
    """Returns the model of a member's settings."""
    if settings.model == "transe":
        return TransE(settings)
    if settings.model == "rotate":
        return RotatE(settings)
    if settings.model == "quate":
        return QuatE(settings)
    if settings.model == "deepwalk":
        return DeepWalk(settings)
    return Ote(settings, normed=settings.model == "note")


def blocks_of(vectors: torch.Tensor, block: int) -> torch.Tensor:
    """Returns vectors in blocks, [..., blocks, block]."""
    return vectors.reshape(*vectors.shape[:-1], vectors.shape[-1] // block, block)


def distance_of_blocks(difference: torch.Tensor, block: int) -> torch.Tensor:
    """Returns the sum of the lengths of blocks of the last dimension."""
    blocks = blocks_of(difference, block)
    return (blocks.square().sum(-1) + SMALLEST).sqrt().sum(-1)


class TransE:
    """A relation moves entities; distances are L1 (NeurIPS 2013, Bordes et al.)."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self.span = (settings.margin + 2) / settings.width

    def begin(self, relations: int, noise: torch.Generator) -> dict[str, torch.Tensor]:
        return {"move": torch.empty(relations, self._settings.width).uniform_(-self.span, self.span, generator=noise)}

    def query(self, parameters: Parameters, known: torch.Tensor, relation: torch.Tensor, inverse: bool) -> torch.Tensor:
        move = parameters["move"][relation]
        return known - move if inverse else known + move

    def score(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return self._settings.margin - (query[:, None] - candidates).abs().sum(-1)


class RotatE:
    """A relation turns complex numbers (arXiv 1902.10197); the first half of a vector is real, the second imaginary."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self.span = (settings.margin + 2) / settings.width

    def begin(self, relations: int, noise: torch.Generator) -> dict[str, torch.Tensor]:
        angles = torch.empty(relations, self._settings.width // 2)
        return {"angle": angles.uniform_(-math.pi, math.pi, generator=noise)}

    def query(self, parameters: Parameters, known: torch.Tensor, relation: torch.Tensor, inverse: bool) -> torch.Tensor:
        real, imaginary = known.chunk(2, -1)
        angle = parameters["angle"][relation] * (-1 if inverse else 1)
        cosine = angle.cos()
        sine = angle.sin()
        return torch.cat([real * cosine - imaginary * sine, real * sine + imaginary * cosine], -1)

    def score(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        real, imaginary = (query[:, None] - candidates).chunk(2, -1)
        return self._settings.margin - (real.square() + imaginary.square() + SMALLEST).sqrt().sum(-1)


class QuatE:
    """A relation turns quaternions (arXiv 1904.10281); scores are inner products."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self.span = 0.5

    def begin(self, relations: int, noise: torch.Generator) -> dict[str, torch.Tensor]:
        turns = torch.empty(relations, self._settings.width)
        return {"turn": turns.uniform_(-self.span, self.span, generator=noise)}

    def query(self, parameters: Parameters, known: torch.Tensor, relation: torch.Tensor, inverse: bool) -> torch.Tensor:
        turn = normalize(blocks_of(parameters["turn"][relation], 4), dim=-1)
        p, i, j, k = turn.unbind(-1)
        if inverse:  # the conjugate of a unit quaternion undoes it
            i = -i
            j = -j
            k = -k
        w, x, y, z = blocks_of(known, 4).unbind(-1)
        product = [
            w * p - x * i - y * j - z * k,
            w * i + x * p + y * k - z * j,
            w * j - x * k + y * p + z * i,
            w * k + x * j - y * i + z * p,
        ]
        return torch.stack(product, -1).flatten(1)

    def score(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return (query[:, None] * candidates).sum(-1)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Returns matrices with orthonormal rows, by Gram and Schmidt: each row without its part along the rows before it."""
    rows: list[torch.Tensor] = []
    for row in matrices.unbind(-2):
        left = row
        for earlier in rows:
            left = left - (left * earlier).sum(-1, keepdim=True) * earlier
        rows.append(normalize(left, dim=-1))
    return torch.stack(rows, -2)


class Ote:
    """A relation turns blocks by orthogonal matrices and scales them (arXiv 1911.04910).

    normed: Norm-OTE: the scales of a block have a mean square of 1, so that no relation can stretch a whole block.
    """

    def __init__(self, settings: MemberSettings, normed: bool) -> None:
        self._settings = settings
        self._normed = normed
        self.span = settings.width**-0.5

    def begin(self, relations: int, noise: torch.Generator) -> dict[str, torch.Tensor]:
        block = self._settings.block
        shape = (relations, self._settings.width // block, block)
        return {"matrix": torch.randn(*shape, block, generator=noise), "scale": torch.zeros(shape)}

    def query(self, parameters: Parameters, known: torch.Tensor, relation: torch.Tensor, inverse: bool) -> torch.Tensor:
        block = self._settings.block
        named, places = torch.unique(relation, return_inverse=True)
        matrix = orthogonal(parameters["matrix"][named])[places]
        scale = parameters["scale"][relation].exp()
        if self._normed:
            scale = normalize(scale, dim=-1) * block**0.5
        blocks = blocks_of(known, block)
        if inverse:
            return torch.einsum("nbji,nbj->nbi", matrix, blocks / scale).flatten(1)
        return (torch.einsum("nbij,nbj->nbi", matrix, blocks) * scale).flatten(1)

    def score(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return self._settings.margin - distance_of_blocks(query[:, None] - candidates, self._settings.block)


class DeepWalk:
    """Entities that random walks find near each other have similar vectors, whatever the relation (arXiv 1403.6652)."""

    def __init__(self, settings: MemberSettings) -> None:
        self.span = settings.width**-0.5

    def begin(self, relations: int, noise: torch.Generator) -> dict[str, torch.Tensor]:
        return {}

    def query(self, parameters: Parameters, known: torch.Tensor, relation: torch.Tensor, inverse: bool) -> torch.Tensor:
        return known

    def score(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return (query[:, None] * candidates).sum(-1)
