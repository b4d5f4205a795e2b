"""The cross-encoder: grows out of a trained late interaction, and scores every query of a batch with every document.

A query's word attends to the words of a document; a small network judges the word, what it has found and how well it fits.
The judgement is added to the late interaction, which is all that the score is at first.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.functional import gelu

from yatt_workloads.initial_noise import initial_noise
from yatt_workloads.retrieval.encoder import DOCUMENT, QUERY, Encoder, best_cosines, randomise
from yatt_workloads.retrieval.settings import RetrievalSettings

SHARPNESS = 15.0
"""What cosines are multiplied by, at first, before the softmax over a document's words."""


class CrossEncoder(nn.Module):
    """Scores pairs of a query and a document."""

    def __init__(self, encoder: Encoder, settings: RetrievalSettings) -> None:
        super().__init__()
        width = settings.width
        self.encoder = copy.deepcopy(encoder)
        self.sharpness = nn.Parameter(torch.tensor(SHARPNESS))
        self.from_found = nn.Linear(width, width, bias=False)
        self.from_asked = nn.Linear(width, width)
        self.from_fit = nn.Linear(1, width, bias=False)
        self.judgement = nn.Linear(width, 1)
        self.late = nn.Parameter(torch.tensor(1 / settings.late_temperature))
        nn.init.zeros_(self.judgement.weight)
        nn.init.zeros_(self.judgement.bias)

    def forward(self, queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Returns logits, [queries, documents]. queries, documents: numbers of words, [texts, words]."""
        asked, asked_there = self.encoder.hidden(queries, QUERY)
        offered, offered_there = self.encoder.hidden(documents, DOCUMENT)
        asked_tokens = self.encoder.tokens(asked, asked_there)
        offered_tokens = self.encoder.tokens(offered, offered_there)
        count, words, width = asked.shape
        others, length, _ = offered.shape
        size = asked_tokens.shape[-1]
        cosines = (asked_tokens.reshape(count * words, size) @ offered_tokens.reshape(others * length, size).T).view(
            count * words, others, length
        )
        missing = offered_there.squeeze(-1) == 0
        fit = best_cosines(cosines, missing).T.unsqueeze(-1)  # [documents, queries x words, 1]
        attention = (cosines * self.sharpness).masked_fill(missing, float("-inf")).softmax(-1)
        found = torch.bmm(attention.transpose(0, 1), offered)
        mixed = gelu(self.from_found(found) + self.from_asked(asked.reshape(count * words, width)) + self.from_fit(fit))
        words_of_pairs = (self.judgement(mixed) + self.late * fit).view(others, count, words)
        scores: torch.Tensor = (words_of_pairs * asked_there.squeeze(-1)).sum(-1).T
        return scores


def new_cross_encoder(encoder: Encoder, settings: RetrievalSettings, seed: int) -> CrossEncoder:
    """Returns a cross-encoder out of an encoder, which is copied; what is new in it is random by the run's seed, on the host."""
    cross = CrossEncoder(encoder, settings)
    noise = initial_noise(seed, "cross-encoder")
    for layer in (cross.from_found, cross.from_asked, cross.from_fit):
        randomise(layer, noise)
    return cross
