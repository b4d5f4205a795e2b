"""One optimizer step on the share of a batch that a rank has: negatives of all ranks, gradients summed.

A rank encodes its own queries and their documents. The documents' vectors of all ranks are gathered, so that each query is
compared with every document of the batch; the gradients of those vectors are summed before each rank carries its own back
through the encoder. The result is the gradient of the whole batch's loss, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from yatt_core.workloads.contract import Ranks
from yatt_workloads.retrieval.candidates import also_relevant
from yatt_workloads.retrieval.corpus import Corpus, Numbers
from yatt_workloads.retrieval.cross_encoder import CrossEncoder
from yatt_workloads.retrieval.encoder import DOCUMENT, QUERY, Encoder, late_interaction
from yatt_workloads.retrieval.losses import right_document, student_loss
from yatt_workloads.retrieval.settings import RetrievalSettings

Teacher = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Scores of queries and documents, both as numbers of words."""


@dataclass(frozen=True)
class StepBatch:
    """What a rank computes of a step.

    size: queries of the whole batch. own: the rows of this rank's queries. queries: their words. documents: the words of all
    documents of the batch. right, also: as for `right_document`.
    """

    size: int
    own: range
    queries: torch.Tensor
    documents: torch.Tensor
    right: torch.Tensor
    also: torch.Tensor


def batch_of(corpus: Corpus, queries: Numbers, candidates: Numbers, ranks: Ranks, device: str) -> StepBatch:
    """Returns a rank's part of a step. queries: [batch]; candidates: [batch, candidates], the first one right."""
    size, width = candidates.shape
    own = ranks.share(size)
    asked = corpus.queries["train"]
    documents = candidates.reshape(-1)
    right = np.arange(own.start, own.stop) * width
    mine = queries[own.start : own.stop]
    return StepBatch(
        size=size,
        own=own,
        queries=torch.from_numpy(asked.words[mine]).to(device),
        documents=torch.from_numpy(corpus.documents[documents]).to(device),
        right=torch.from_numpy(right).to(device),
        also=torch.from_numpy(also_relevant(asked.relevant[mine], documents, right)).to(device),
    )


def backward_student(
    encoder: Encoder, batch: StepBatch, method: str, settings: RetrievalSettings, teacher: Teacher | None, ranks: Ranks
) -> torch.Tensor:
    """Adds this rank's share of a student's gradients to its parameters'. Returns its share of the loss.

    teacher: of the cascade or of its control; None in other stages.
    """
    width = len(batch.documents) // batch.size
    own = slice(batch.own.start * width, batch.own.stop * width)
    asked = encoder(batch.queries, QUERY)
    mine = encoder(batch.documents[own], DOCUMENT)
    outputs: dict[str, torch.Tensor] = {}
    if method != "late":
        outputs["vectors"] = mine.vectors
    if method != "plain":
        outputs["tokens"] = mine.tokens
    every = ranks.gathered({name: output.detach().cpu().numpy() for name, output in outputs.items()})
    leaves: dict[str, torch.Tensor] = {}
    for name, output in outputs.items():
        whole = torch.cat([torch.from_numpy(part[name]) for part in every])
        leaves[name] = whole.to(output.device).requires_grad_()
    dual = None
    late = None
    if "vectors" in leaves:
        dual = asked.vectors @ leaves["vectors"].T / settings.temperature
    if "tokens" in leaves:
        late = late_interaction(asked.tokens, leaves["tokens"]) / settings.late_temperature
    scores = None
    if teacher is not None:
        with torch.no_grad():
            scores = teacher(batch.queries, batch.documents)
    loss = student_loss(
        settings,
        dual=dual,
        late=late,
        teacher=scores,
        right=batch.right,
        also=batch.also,
    )
    loss = loss / batch.size
    torch.autograd.backward([loss])
    carried = []
    for name, leaf in leaves.items():
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        carried.append((outputs[name], ranks.sum(gradient)[own]))
    torch.autograd.backward([output for output, _ in carried], [gradient for _, gradient in carried])
    return loss.detach()


def backward_cross(cross: CrossEncoder, batch: StepBatch) -> torch.Tensor:
    """Adds this rank's share of the cross-encoder's gradients to its parameters'. Returns its share of the loss."""
    loss = right_document(cross(batch.queries, batch.documents), batch.right, batch.also) / batch.size
    torch.autograd.backward([loss])
    return loss.detach()


def sum_gradients(module: nn.Module, ranks: Ranks) -> torch.Tensor:
    """Sums a module's gradients over the ranks, in one call. Returns their norm."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters]
    total = ranks.sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    for parameter, summed in zip(
        parameters, torch.split(total, [gradient.numel() for gradient in gradients]), strict=True
    ):
        parameter.grad = summed.view_as(parameter).clone()
    norm: torch.Tensor = total.norm()
    return norm


def late_teacher(encoder: Encoder, settings: RetrievalSettings) -> Teacher:
    """Returns an encoder's late interaction as a teacher."""

    def scores(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        asked = encoder(queries, QUERY).tokens
        offered = encoder(documents, DOCUMENT).tokens
        return late_interaction(asked, offered) / settings.late_temperature

    return scores
