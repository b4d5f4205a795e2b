"""Evaluates scores, or a model that it trains, with PyKEEN: `build/peers/bin/python -P THIS_FILE REQUEST ANSWER`.

Consumes a JSON file: `data` (a data set of PyKEEN's wheel), and either `scores` (a file of numpy arrays: `entities` and
`relations`, names in the order of their numbers; `triples`, [triples, 3]; `tails` and `heads`, [triples, entities]), or
`training` (settings of RotatE). Produces a JSON file: filtered mean reciprocal ranks by the kind of rank. Runs in the
environment of the peers, which has no YATT, with one thread.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pykeen.datasets import get_dataset
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models.mocks import FixedModel
from pykeen.pipeline import pipeline

KINDS = ("optimistic", "realistic", "pessimistic")


class Given(FixedModel):  # type: ignore[misc]
    """Answers with scores that it was given, by known entity and relation."""

    def __init__(self, data: Any, given: Any) -> None:
        super().__init__(triples_factory=data.training)
        entities = [data.training.entity_to_id[name] for name in given["entities"]]
        relations = [data.training.relation_to_id[name] for name in given["relations"]]
        columns = np.argsort(entities)
        self._tails: dict[tuple[int, int], torch.Tensor] = {}
        self._heads: dict[tuple[int, int], torch.Tensor] = {}
        for (head, relation, tail), tails, heads in zip(given["triples"], given["tails"], given["heads"], strict=True):
            self._tails[entities[head], relations[relation]] = torch.from_numpy(tails[columns])
            self._heads[relations[relation], entities[tail]] = torch.from_numpy(heads[columns])

    def score_t(self, hr_batch: Any, **_: Any) -> torch.Tensor:
        """Returns the scores of all tails."""
        return torch.stack([self._tails[head, relation] for head, relation in hr_batch.tolist()])

    def score_h(self, rt_batch: Any, **_: Any) -> torch.Tensor:
        """Returns the scores of all heads."""
        return torch.stack([self._heads[relation, tail] for relation, tail in rt_batch.tolist()])


def of_given_scores(data: Any, path: str) -> dict[str, float]:
    """Returns PyKEEN's figures of scores in a file."""
    evaluator = RankBasedEvaluator()
    found = evaluator.evaluate(
        model=Given(data, np.load(path)),
        mapped_triples=data.testing.mapped_triples,
        additional_filter_triples=[data.training.mapped_triples, data.validation.mapped_triples],
        batch_size=256,
        use_tqdm=False,
    )
    return _figures(found)


def of_training(name: str, settings: dict[str, Any]) -> dict[str, float]:
    """Returns the figures of PyKEEN's RotatE, trained by PyKEEN."""
    result = pipeline(
        dataset=name,
        model="RotatE",
        model_kwargs={"embedding_dim": settings["width"] // 2},
        loss="nssa",
        loss_kwargs={"margin": settings["margin"], "adversarial_temperature": 1.0},
        negative_sampler_kwargs={"num_negs_per_pos": settings["negatives"]},
        optimizer="adam",
        optimizer_kwargs={"lr": settings["rate"]},
        training_kwargs={"num_epochs": settings["epochs"], "batch_size": settings["batch"], "use_tqdm": False},
        evaluation_kwargs={"batch_size": 256, "use_tqdm": False},
        random_seed=settings["seed"],
        device="cpu",
    )
    return _figures(result.metric_results)


def _figures(results: Any) -> dict[str, float]:
    return {kind: float(results.get_metric(f"both.{kind}.inverse_harmonic_mean_rank")) for kind in KINDS}


def main() -> None:
    """Answers a request."""
    torch.set_num_threads(1)
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if "training" in request:
        answer = of_training(request["data"], request["training"])
    else:
        answer = of_given_scores(get_dataset(dataset=request["data"]), request["scores"])
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
