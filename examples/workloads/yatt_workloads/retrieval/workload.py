"""Dense retrieval as a workload: stages, state, evaluation (ERNIE-Search, arXiv 2205.09153).

`Retrieval` learns from negatives that are drawn. `MinedRetrieval` mines hard ones too: from an index of its present state, by
schedule, sealed before the update and kept in the state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from yatt_core.workloads.contract import Columns, Draw, Listing, Metrics, Ranks, RunFacts, SavedState, State
from yatt_workloads.retrieval.adam import NamedAdam
from yatt_workloads.retrieval.candidates import CANDIDATES, QUERIES, CandidateDraws, with_mined
from yatt_workloads.retrieval.corpus import NO_DOCUMENT, SETTINGS, Numbers, read_corpus, write_corpus
from yatt_workloads.retrieval.cross_encoder import CrossEncoder, new_cross_encoder
from yatt_workloads.retrieval.encoder import Encoder, new_encoder
from yatt_workloads.retrieval.evaluation import LATE, Embedder, figures, mine, searches
from yatt_workloads.retrieval.generated import GeneratedTask, generate
from yatt_workloads.retrieval.in_words import document_names, in_words, ranked, recall_by_k
from yatt_workloads.retrieval.records import Document, Query, read_records
from yatt_workloads.retrieval.settings import FIXED, read_settings
from yatt_workloads.retrieval.stages import learning_rate, stage_number, stages_of
from yatt_workloads.retrieval.training import (
    Teacher,
    backward_cross,
    backward_student,
    batch_of,
    late_teacher,
    sum_gradients,
)
from yatt_workloads.tunable import refuse_tunable

STUDENT = "student"
TEACHER = "teacher"


class Retrieval:
    """Implements `Workload`."""

    ranks: ClassVar[Literal["one", "any"]] = "any"
    mines: ClassVar[bool] = False

    def __init__(self, facts: RunFacts) -> None:
        refuse_tunable(facts, FIXED, shaped="the inputs, the state or the kinds of candidates")
        self._facts = facts
        self._seed = facts.seed
        self._device = facts.device
        self._settings = read_settings(facts.settings, facts.iterations)
        if self.mines != (self._settings.mined > 0):
            wish = (
                "at least 1; Retrieval is the class for 0" if self.mines else "0; MinedRetrieval is the class for more"
            )
            raise ValueError(f"mined: expected {wish} (given: {self._settings.mined})")
        self._stages = stages_of(self._settings, facts.iterations)

    def check_inputs(self) -> None:
        """Raises `ValueError` for a corpus that cannot be used, with file and line, and for a task that cannot be generated."""
        self._records()

    def build_inputs(self, folder: Path) -> None:
        """Writes the corpus. Raises `ValueError` for one that cannot be used."""
        settings = self._settings
        documents, queries = self._records()
        write_corpus(
            folder=folder,
            documents=documents,
            queries=queries,
            document_words=settings.document_words,
            query_words=settings.query_words,
        )
        (folder / SETTINGS).write_text(json.dumps(asdict(settings)), encoding="utf-8")

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        """Begins with a random student."""
        self._ranks = ranks
        self._corpus = read_corpus(inputs)
        self._names = document_names(inputs)
        self._draws = CandidateDraws(self._corpus, self._settings)
        self._student = self._fresh()
        self._teacher: CrossEncoder | Encoder | None = None
        self._enter(0)

    def draw(self, draw: Draw) -> Columns:
        """Draws queries, and documents for each."""
        return self._draws.draw(draw)

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        """Takes an iteration's steps; the first one of a stage begins it."""
        for number in range(self._stage + 1, stage_number(self._stages, draw.iteration) + 1):
            self._begin_stage(number)
        losses = []
        norms = []
        for step, (queries, candidates) in enumerate(zip(columns[QUERIES], columns[CANDIDATES], strict=True)):
            loss, norm = self._step(queries, candidates)
            self._optimizer.step(learning_rate(self._settings, self._stages[self._stage], draw.iteration, step))
            losses.append(loss)
            norms.append(norm)
        total = self._ranks.sum(torch.stack(losses))
        return {"loss": float(total.mean()), "grad_norm": float(torch.stack(norms).max()), "stage": float(self._stage)}

    def evaluate(self) -> Metrics:
        """Returns MRR@10 and Recall@k of the held-out queries; `accuracy` is the development queries' MRR."""
        embedder = Embedder(self._student, self._ranks)
        self._searches = searches(embedder, self._corpus, self._settings)
        return figures(self._searches, self._settings)

    def tables(self) -> Mapping[str, Listing]:
        """Returns recall by k, and what the first development queries have found."""
        most = min(self._settings.recall_at, len(self._corpus.documents))
        dev = self._searches["dev" if self._settings.has_dual else f"dev/{LATE}"]
        words = self._corpus.queries["dev"].words
        return {
            "recall_by_k": recall_by_k(self._searches, most),
            "searches": ranked(dev, words, self._corpus, self._names),
        }

    def shown(self, columns: Columns) -> Listing:
        """Returns the texts of an iteration's first queries and of their candidates."""
        return in_words(columns, self._corpus, self._names)

    def state(self) -> State:
        """Returns student, teacher, and the moments of the one that is trained."""
        return State(
            weights=self._weights(),
            others=self._optimizer.moments(),
            facts={"stage": self._stage, "steps": self._optimizer.steps},
        )

    def load(self, saved: SavedState) -> None:
        """Takes over what `state` has returned."""
        stage = int(saved.facts["stage"])
        self._teacher = self._empty_teacher(stage)
        for name, values in self._weights().items():
            values.copy_(saved.weights.whole(name))
        self._enter(stage)
        moments = {name: saved.others.whole(name) for name in self._optimizer.moments()}
        self._optimizer.load(moments, int(saved.facts["steps"]))

    # -- internals ----------------------------------------------------------------------------------------------------

    def _records(self) -> tuple[list[Document], list[Query]]:
        settings = self._settings
        if settings.corpus is not None:
            return read_records(self._facts.path_of(settings.corpus))
        sizes = {"train": settings.train_queries, "dev": settings.dev_queries, "test": settings.test_queries}
        return generate(GeneratedTask(settings.documents, sizes), self._seed)

    def _weights(self) -> dict[str, torch.Tensor]:
        modules = {STUDENT: self._student, TEACHER: self._teacher}
        return {
            f"{part}.{name}": parameter.detach()
            for part, module in modules.items()
            if module is not None
            for name, parameter in module.named_parameters()
        }

    def _empty_teacher(self, stage: int) -> CrossEncoder | Encoder | None:
        """Returns a teacher of the kind that a stage has, with any weights."""
        if stage == 0:
            return None
        cross = any(passed.trains == "cross" for passed in self._stages[: stage + 1])
        return self._grown() if cross else self._fresh()

    def _grown(self) -> CrossEncoder:
        return new_cross_encoder(self._student, self._settings, self._seed).to(self._device)

    def _fresh(self) -> Encoder:
        return new_encoder(self._corpus, self._settings, self._seed).to(self._device)

    def _begin_stage(self, number: int) -> None:
        """Turns the student into a cross-encoder or a frozen teacher, or begins a fresh student."""
        if self._stages[number].trains == "cross":
            self._teacher = self._grown()
        else:
            self._teacher = self._teacher or self._student
            self._student = self._fresh()
        self._enter(number)

    def _enter(self, number: int) -> None:
        self._stage = number
        self._optimizer = NamedAdam(self._trained(), self._settings.decay)

    def _trained(self) -> nn.Module:
        if self._stages[self._stage].trains == STUDENT:
            return self._student
        assert self._teacher is not None, "the stage began with one"
        return self._teacher

    def _teaching(self) -> Teacher | None:
        if isinstance(self._teacher, Encoder):
            return late_teacher(self._teacher, self._settings)
        return self._teacher

    def _step(self, queries: Numbers, candidates: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes a step's gradients. Returns this rank's share of the loss, and the norm."""
        batch = batch_of(self._corpus, queries, candidates, ranks=self._ranks, device=self._device)
        stage = self._stages[self._stage]
        if stage.trains == STUDENT:
            loss = backward_student(
                self._student,
                batch,
                method=stage.method,
                settings=self._settings,
                teacher=self._teaching(),
                ranks=self._ranks,
            )
        else:
            assert isinstance(self._teacher, CrossEncoder), "only a cross-encoder is trained beside the student"
            loss = backward_cross(self._teacher, batch)
        return loss, sum_gradients(self._trained(), self._ranks)


class MinedRetrieval(Retrieval):
    """Implements `Workload` and `Samples`: some candidates are what the present state takes for relevant, and is not."""

    mines: ClassVar[bool] = True

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        if self._settings.mine_every % facts.checkpoint_every:
            raise ValueError(
                f"mine_every: mines the state of the last checkpoint; expected a multiple of checkpoints.every, "
                f"{facts.checkpoint_every} (given: {self._settings.mine_every})"
            )

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        """Begins as `Retrieval`, with nothing mined."""
        super().begin(inputs, ranks)
        queries = len(self._corpus.queries["train"].words)
        self._mined = torch.full((queries, self._settings.mined_from), NO_DOCUMENT, dtype=torch.int64)

    def sample(self, columns: Columns, draw: Draw) -> Columns:
        """Puts mined documents among the candidates; every `mine_every` iterations, mines first.

        Returns the same on every rank.
        """
        mined = self._mined.numpy()
        found: dict[str, np.ndarray[Any, Any]] = {}
        if draw.iteration > 1 and (draw.iteration - 1) % self._settings.mine_every == 0:
            mined = mine(Embedder(self._student, self._ranks), self._corpus, self._settings)
            found["mined"] = mined
        found.update(with_mined(columns, mined, self._settings, draw.generator("mined")))
        return found

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        """Learns as `Retrieval`; what was mined becomes part of the state."""
        if "mined" in columns:
            self._mined = torch.from_numpy(np.array(columns["mined"]))
        return super().update(columns, draw)

    def state(self) -> State:
        """Returns the state of `Retrieval`, and what was mined."""
        state = super().state()
        others: Mapping[str, Any] = {**state.others, "mined": self._mined}
        return State(weights=state.weights, others=others, facts=state.facts)

    def load(self, saved: SavedState) -> None:
        """Takes over what `state` has returned."""
        super().load(saved)
        self._mined = saved.others.whole("mined").clone()
