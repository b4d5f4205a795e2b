"""What a spec says under `workload.settings` of a retrieval run.

Consumes the settings' mapping. Produces checked settings; raises `ValueError` for those that cannot be used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

METHODS = ("plain", "late", "self", "cascade", "frozen")
TAUGHT = ("cascade", "frozen")
POSITIVE = (
    "documents", "train_queries", "dev_queries", "test_queries", "steps", "batch", "candidates", "width", "layers",
    "vector_width", "token_width", "document_words", "query_words", "recall_at", "rate", "temperature",
    "late_temperature", "softening", "cross_rate",
)  # fmt: skip


NOT_NEGATIVE = (
    "siblings", "mined", "first", "cross", "decay", "late_to_dual", "cross_to_dual", "cross_to_late",
)  # fmt: skip
HEADS = 4
"""Heads of a layer's attention, which divide its width."""
SIZES = ("documents", "train_queries", "dev_queries", "test_queries")
"""Settings of a generated task alone."""
MINING = ("mined_from", "mine_every")
DISTILLING = ("self", *TAUGHT)
ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "temperature": ("plain", *DISTILLING),
    "vector_width": ("plain", *DISTILLING),
    "token_width": ("late", *DISTILLING),
    "late_temperature": ("late", *DISTILLING),
    "softening": DISTILLING,
    "late_to_dual": DISTILLING,
    "cross_to_dual": TAUGHT,
    "cross_to_late": TAUGHT,
    "cross_rate": ("cascade",),
}
"""Settings that other methods do not read."""
FIXED = frozenset(
    {
        *SIZES, *MINING, "corpus", "document_words", "query_words", "method", "first", "cross", "width", "layers",
        "vector_width", "token_width", "candidates", "siblings", "mined",
    }
)  # fmt: skip
"""Settings that no run may change: on them the inputs, the form of the state or the kinds of candidates depend."""


@dataclass(frozen=True)
class RetrievalSettings:
    """Settings of a retrieval run.

    method: `plain` trains the dual encoder alone, `late` the late interaction alone, `self` both on the same layers, where the
        late interaction teaches the dual encoder as it learns. `cascade` begins as `self`, grows a cross-encoder out of its late
        interaction, and trains a fresh student that also learns from the cross-encoder. `frozen` is its control: the teacher is
        a copy of the late interaction as it was.
    corpus: folder with `documents.jsonl` and `queries.jsonl`; without it, documents and queries are generated.
    documents, train_queries, dev_queries, test_queries: sizes of a generated task.
    document_words, query_words: what is longer is cut to that many words.
    steps: optimizer steps in an iteration.
    batch: queries in a step. candidates: documents drawn for each of them, the relevant one included; the documents of the
        other queries are negatives too. siblings: how many candidates come from the relevant document's group. mined: how many
        come from the `mined_from` best of the index of the present state, which `MinedRetrieval` builds every `mine_every`
        iterations.
    first, cross: iterations of the first two stages of `cascade`; `frozen` has no second one.
    rate: peak learning rate; cross_rate: the cross-encoder's, as a factor of it. decay: weight decay.
    temperature: of the dual encoder's cosines; late_temperature: of the sum of the query words' best cosines.
    softening: temperature of both sides of a distillation.
    late_to_dual, cross_to_dual, cross_to_late: weights of the distillations.
    recall_at: number of documents that a search returns.
    """

    method: str = "self"
    corpus: str | None = None
    documents: int = 1_000
    train_queries: int = 2_000
    dev_queries: int = 500
    test_queries: int = 500
    document_words: int = 64
    query_words: int = 32
    steps: int = 20
    batch: int = 32
    candidates: int = 4
    siblings: int = 2
    mined: int = 0
    mined_from: int = 30
    mine_every: int = 10
    first: int = 0
    cross: int = 0
    width: int = 64
    layers: int = 1
    vector_width: int = 64
    token_width: int = 32
    rate: float = 5e-3
    cross_rate: float = 0.5
    decay: float = 0.01
    temperature: float = 0.07
    late_temperature: float = 0.21
    softening: float = 4.0
    late_to_dual: float = 10.0
    cross_to_dual: float = 5.0
    cross_to_late: float = 0.3
    recall_at: int = 100

    @property
    def has_late(self) -> bool:
        """True if the student has a late interaction."""
        return self.method != "plain"

    @property
    def has_dual(self) -> bool:
        """True if the student's dual encoder is trained."""
        return self.method != "late"


def read_settings(given: Mapping[str, Any], iterations: int) -> RetrievalSettings:
    """Returns checked settings of a run of so many iterations. Raises `ValueError`."""
    known = {field.name: field for field in fields(RetrievalSettings)}
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{unknown[0]}: there is no such setting; known: {', '.join(sorted(known))}")
    for name, value in given.items():
        _check_type(name, value, known[name].default)
    settings = RetrievalSettings(**given)
    if settings.method not in METHODS:
        raise ValueError(f"method: {settings.method!r} is none; expected one of {', '.join(METHODS)}")
    for name in POSITIVE:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name}: expected more than 0 (given: {getattr(settings, name)})")
    for name in NOT_NEGATIVE:
        if not getattr(settings, name) >= 0:
            raise ValueError(f"{name}: expected at least 0 (given: {getattr(settings, name)})")
    _check_unread(settings, given)
    if settings.width % HEADS:
        raise ValueError(f"width: expected a multiple of {HEADS} (given: {settings.width})")
    _check_candidates(settings, iterations)
    _check_stages(settings, iterations)
    return settings


def _check_candidates(settings: RetrievalSettings, iterations: int) -> None:
    if settings.siblings + settings.mined >= settings.candidates:
        raise ValueError(
            f"candidates: one is relevant, {settings.siblings} are siblings and {settings.mined} are mined; expected at least "
            f"{settings.siblings + settings.mined + 1} (given: {settings.candidates})"
        )
    if settings.mined and settings.mine_every < 1:
        raise ValueError(f"mine_every: expected at least 1 (given: {settings.mine_every})")
    if settings.mined and settings.mine_every >= iterations:
        raise ValueError(
            f"mine_every: expected less than the run's {iterations} iterations, or nothing is ever mined (given: "
            f"{settings.mine_every})"
        )
    if settings.mined > settings.mined_from:
        raise ValueError(f"mined_from: expected at least mined, {settings.mined} (given: {settings.mined_from})")
    if settings.batch * settings.candidates < 2:
        raise ValueError("batch, candidates: expected at least two documents in a step (given: 1)")


def _check_unread(settings: RetrievalSettings, given: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a setting that would change nothing."""
    for name in SIZES:
        if settings.corpus is not None and name in given:
            raise ValueError(f"{name}: is of a generated task, but corpus names one; leave one of them out")
    for name in MINING:
        if not settings.mined and name in given:
            raise ValueError(f"{name}: nothing is mined; expected mined to be at least 1, or no {name}")
    for name, methods in ONLY_WITH.items():
        if name in given and settings.method not in methods:
            raise ValueError(
                f"{name}: method {settings.method} does not read it; it belongs to {', '.join(methods)}; leave it out"
            )


def _check_type(name: str, value: Any, default: Any) -> None:
    """Raises `ValueError` for a value of another type than the default's; a whole number may stand for any."""
    expected = "a whole number"
    allowed = isinstance(value, int)
    if default is None or isinstance(default, str):
        expected = "a text"
        allowed = isinstance(value, str) or value is default
    elif isinstance(default, float):
        expected = "a number"
        allowed = isinstance(value, int | float)
    if not allowed or isinstance(value, bool):
        raise ValueError(f"{name}: expected {expected} (given: {value!r})")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number (given: {value!r})")


def _check_stages(settings: RetrievalSettings, iterations: int) -> None:
    expected = {"cascade": (True, True), "frozen": (True, False)}.get(settings.method, (False, False))
    for name, wanted in zip(("first", "cross"), expected, strict=True):
        value = getattr(settings, name)
        if wanted != (value > 0):
            wish = "at least 1" if wanted else "0"
            raise ValueError(f"{name}: method {settings.method} expects {wish} (given: {value})")
    if settings.first + settings.cross >= iterations:
        raise ValueError(
            f"first, cross: {settings.first} and {settings.cross} iterations leave none of the run's {iterations} for the student"
        )
