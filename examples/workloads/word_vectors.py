"""Word vectors by skip-grams with negative samples (arXiv 1310.4546), on sentences that are generated.

A sentence has words of one topic; an evaluation asks whether the nearest neighbours of words are of their topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from yatt_core.workloads.contract import Columns, Draw, Metrics, Ranks, RunFacts, SavedState, State

TABLES = ("words", "contexts")
FIXED = {"topics", "words", "sentences", "length", "width"}


@dataclass(frozen=True)
class Settings:
    """What a spec says under `workload.settings`."""

    topics: int = 8
    words: int = 160
    sentences: int = 4_000
    length: int = 6
    width: int = 16
    pairs: int = 2_048
    negatives: int = 4
    rate: float = 0.02


class WordVectors:
    """Implements `Workload`."""

    ranks: ClassVar[Literal["one", "any"]] = "any"

    def __init__(self, facts: RunFacts) -> None:
        if fixed := sorted(FIXED & facts.tunable):
            raise ValueError(f"tunable.{fixed[0]}: shapes the inputs or the state; expected it in settings")
        self._facts = facts
        self._settings = Settings(**facts.settings)
        if self._settings.words % self._settings.topics:
            raise ValueError(f"words: {self._settings.words} is no multiple of topics {self._settings.topics}")

    def build_inputs(self, folder: Path) -> None:
        """Writes the sentences, as numbers of words."""
        settings = self._settings
        noise = np.random.default_rng(self._facts.seed)
        topics = noise.integers(settings.topics, size=(settings.sentences, 1))
        words = noise.integers(settings.words // settings.topics, size=(settings.sentences, settings.length))
        save_file({"sentences": topics + settings.topics * words}, folder / "sentences.safetensors")

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        """Begins with small random vectors, from the run's seed, and an Adam without steps."""
        self._ranks = ranks
        self._sentences = load_file(inputs / "sentences.safetensors")["sentences"]
        noise = torch.Generator().manual_seed(Draw(self._facts.seed, 0, 0).seed_of("vectors"))
        shape = (self._settings.words, self._settings.width)
        self._tables = {name: 0.1 * torch.randn(shape, generator=noise) for name in TABLES}
        self._moments = {f"{moment}.{name}": torch.zeros(shape) for name in TABLES for moment in ("mean", "square")}
        self._steps = 0

    def draw(self, draw: Draw) -> Columns:
        """Draws pairs of words that stand in one sentence, and words that need not."""
        settings = self._settings
        noise = draw.generator("pairs")
        rows = noise.integers(len(self._sentences), size=settings.pairs)
        places = noise.permuted(np.tile(np.arange(settings.length), (settings.pairs, 1)), axis=1)
        centre, context = (self._sentences[rows, places[:, side]] for side in (0, 1))
        negatives = noise.integers(settings.words, size=(settings.pairs, settings.negatives))
        return {"centre": centre, "context": context, "negatives": negatives}

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        """Takes one step of Adam on the mean loss of all pairs."""
        own = self._ranks.share(len(columns["centre"]))
        centre, context, negatives = (
            torch.from_numpy(columns[name][own.start : own.stop]) for name in ("centre", "context", "negatives")
        )
        tables = {name: table.clone().requires_grad_() for name, table in self._tables.items()}
        words, contexts = (tables[name] for name in TABLES)
        right = (words[centre] * contexts[context]).sum(-1)
        wrong = torch.einsum("pw,pnw->pn", words[centre], contexts[negatives])
        losses = torch.nn.functional.softplus(-right) + torch.nn.functional.softplus(wrong).sum(-1)
        loss = losses.sum() / len(columns["centre"])
        own_gradients = torch.autograd.grad(loss, [words, contexts])
        gradients = {name: self._ranks.sum(own) for name, own in zip(TABLES, own_gradients, strict=True)}
        self._step(gradients)
        norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
        return {"loss": float(self._ranks.sum(loss.detach().clone())), "grad_norm": float(norm)}

    def _step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        self._steps += 1
        for name, gradient in gradients.items():
            mean, square = (self._moments[f"{moment}.{name}"] for moment in ("mean", "square"))
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            scale = (square / (1 - 0.99**self._steps)).sqrt().add_(1e-8)
            self._tables[name] -= self._settings.rate * mean / (1 - 0.9**self._steps) / scale

    def evaluate(self) -> Metrics:
        """Returns the share of words whose nearest neighbour, by cosine, has their topic."""
        words = torch.nn.functional.normalize(self._tables["words"], dim=-1)
        nearest = (words @ words.T).fill_diagonal_(-1).argmax(-1)
        topics = torch.arange(self._settings.words) % self._settings.topics
        return {"accuracy": float((topics[nearest] == topics).double().mean())}

    def state(self) -> State:
        """Returns tables, moments, and the number of steps."""
        return State(weights=self._tables, others=self._moments, facts={"steps": self._steps})

    def load(self, saved: SavedState) -> None:
        """Takes over what `state` has returned."""
        self._tables = {name: saved.weights.whole(name) for name in self._tables}
        self._moments = {name: saved.others.whole(name) for name in self._moments}
        self._steps = int(saved.facts["steps"])
