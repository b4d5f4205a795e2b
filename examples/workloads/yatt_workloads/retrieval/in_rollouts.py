"""An exported retriever in runs of reinforcement learning: a tool that searches, and a reward for queries that find.

Named in a spec as `yatt_workloads.retrieval.in_rollouts:search` and `:reciprocal_rank`, with the folder as an option.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from yatt_workloads.retrieval.records import words_of
from yatt_workloads.retrieval.retriever import Retriever


class Asked(Protocol):
    """What the reward needs of a prompt. answer: the name of the document that is to be found."""

    @property
    def answer(self) -> str | None: ...


@lru_cache(maxsize=2)
def opened(index: str) -> Retriever:
    """Returns the retriever of a folder."""
    return Retriever(Path(index))


def search(query: str, index: str, limit: int = 3) -> list[dict[str, Any]]:
    """Returns the documents that match a query: `document`, `text` and `score`, the best one first.

    index: folder of an exported retriever. Raises as `Retriever.search` does.
    """
    return [asdict(hit) for hit in opened(index).search(query, limit)]


def reciprocal_rank(prompt: Asked, response: str, index: str, cut: int = 10) -> float:
    """Returns 1 / rank of the prompt's document in a search for the response; 0 behind the cut, and for an empty response.

    Documents with the same score count as ranked before it. Raises `ValueError` for a prompt whose answer is no document of the
    index, and as `Retriever.search` does for vectors that are not finite.
    """
    if not prompt.answer:
        raise ValueError("the prompt has no answer; expected the name of the document that is to be found")
    if prompt.answer not in opened(index).names:
        raise ValueError(
            f"the prompt's answer {prompt.answer!r} is no document of {index}, so that no query can find it"
        )
    if not words_of(response):
        return 0.0
    hits = opened(index).search(response, cut + 1)
    scores = {hit.document: hit.score for hit in hits}
    if prompt.answer not in scores:
        return 0.0
    rank = sum(score >= scores[prompt.answer] for score in scores.values())
    return 1 / rank if rank <= cut else 0.0
