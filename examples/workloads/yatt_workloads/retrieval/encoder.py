"""The encoder of queries and documents: one vector a text for the dual encoder, one a word for late interaction.

Both share all layers (ERNIE-Search, arXiv 2205.09153). Consumes numbers of words; produces vectors of length 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import RobertaPreLayerNormConfig, RobertaPreLayerNormModel

from yatt_workloads.initial_noise import initial_noise
from yatt_workloads.retrieval.corpus import FIRST_WORD, PADDING, UNKNOWN
from yatt_workloads.retrieval.settings import HEADS, RetrievalSettings

if TYPE_CHECKING:
    from yatt_workloads.retrieval.corpus import Corpus

QUERY = 0
DOCUMENT = 1
SCALES = {"word_embeddings": 0.5, "token_type_embeddings": 0.1, "position_embeddings": 0.05}
LAYER_SCALE = 0.07
"""Standard deviations of random weights: of tables by name, and of layers."""


@dataclass(frozen=True)
class Encoded:
    """Texts as vectors: `vectors` [texts, vector width]; `tokens` [texts, words, token width], zero where there is no word."""

    vectors: torch.Tensor
    tokens: torch.Tensor


class Encoder(nn.Module):
    """A transformer with two heads on its last layer."""

    def __init__(self, words: int, longest: int, settings: RetrievalSettings) -> None:
        super().__init__()
        config = RobertaPreLayerNormConfig(
            vocab_size=words,
            hidden_size=settings.width,
            num_hidden_layers=settings.layers,
            num_attention_heads=HEADS,
            intermediate_size=2 * settings.width,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=longest + PADDING + 1,
            type_vocab_size=2,
            layer_norm_eps=1e-5,
            pad_token_id=PADDING,
        )
        self.body = RobertaPreLayerNormModel(config, add_pooling_layer=False)
        self.vector = nn.Linear(settings.width, settings.vector_width, bias=False)
        self.token = nn.Linear(settings.width, settings.token_width, bias=False)

    def hidden(self, words: torch.Tensor, side: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the last layer, [texts, words, width], and 1 where there is a word, else 0, [texts, words, 1].

        words: [texts, words]; a rank may have no texts.
        side: `QUERY` or `DOCUMENT`.
        """
        if not len(
            words
        ):  # the body takes no empty batch: the place of a text in it keeps the way of gradients, which are zero
            hidden, there = self.hidden(words.new_full((1, words.shape[1]), UNKNOWN), side)
            return hidden[:0], there[:0]
        there = words != PADDING
        mask = None if bool(there.all()) else there.long()
        found = self.body(input_ids=words, attention_mask=mask, token_type_ids=torch.full_like(words, side))
        return found.last_hidden_state, there.float().unsqueeze(-1)

    def tokens(self, hidden: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Returns one vector a word."""
        return normalize(self.token(hidden), dim=-1) * there

    def forward(self, words: torch.Tensor, side: int) -> Encoded:
        """Returns a text's vectors."""
        hidden, there = self.hidden(words, side)
        vectors = normalize(self.vector((hidden * there).sum(1)), dim=-1)
        return Encoded(vectors, self.tokens(hidden, there))


def new_encoder(corpus: Corpus, settings: RetrievalSettings, seed: int) -> Encoder:
    """Returns an encoder for a corpus, random by the run's seed."""
    longest = max(corpus.documents.shape[1], *(found.words.shape[1] for found in corpus.queries.values()))
    encoder = Encoder(FIRST_WORD + len(corpus.vocabulary), longest, settings)
    randomise(encoder, initial_noise(seed, "encoder"))
    return encoder


@torch.no_grad()
def randomise(module: nn.Module, noise: torch.Generator) -> None:
    """Draws the weights of a module's tables and layers; torch's own generator has no part in them."""
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            scale = next((scale for table, scale in SCALES.items() if table in name), LAYER_SCALE)
            parameter.normal_(std=scale, generator=noise)
        elif name.endswith("bias"):
            parameter.zero_()


def late_interaction(queries: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Returns the sum over a query's words of the best cosine among a document's words (ColBERT's MaxSim).

    queries: [queries, words, width]. documents: [documents, words, width], each with a word. A vector of zeros is no word.
    Result: [queries, documents].
    """
    asked, words, width = queries.shape
    offered, length, _ = documents.shape
    cosines = queries.reshape(asked * words, width) @ documents.reshape(offered * length, width).T
    best = best_cosines(cosines.view(asked * words, offered, length), (documents == 0).all(-1))
    return best.view(asked, words, offered).sum(1)


def best_cosines(cosines: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:
    """Returns the best cosine of each document, [words of queries, documents]; what is no word has no part in it.

    cosines: [words of queries, documents, length]. missing: where a document has no word, [documents, length].
    """
    return cosines.masked_fill(missing, float("-inf")).amax(-1)
