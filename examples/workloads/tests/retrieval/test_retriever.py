"""An exported retriever finds what the run's own evaluation finds; as a tool and as a reward, it never takes nothing for good."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.workloads.tests.retrieval.ranks import SMALL
from tests.workloads.in_process import OwnRun
from yatt_workloads.retrieval.in_rollouts import reciprocal_rank, search
from yatt_workloads.retrieval.retriever import VECTORS, export_retriever

SPEC = Path(__file__).parents[2] / "specs" / "retrieval.yaml"


@dataclass(frozen=True)
class Prompt:
    answer: str | None


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("retriever")
    settings = json.dumps({**SMALL, "method": "self"})
    run = OwnRun.of(folder / "home", SPEC, "iterations=4", "checkpoints.every=4", f"workload.settings={settings}")
    run.drive()
    (checkpoint,) = (path for path in (run.folder / "checkpoints").iterdir() if "i000004" in path.name)
    export_retriever(run.folder / "inputs", checkpoint, folder / "index")
    with run.ledger() as ledger:
        (folder / "mrr").write_text(str(ledger.metrics.history(run.run, "evaluation/test/mrr_at_10")[-1][1]))
    queries = run.folder / "inputs"
    (folder / "inputs").symlink_to(queries)
    return str(folder / "index")


def test_a_checkpoint_becomes_a_tool_and_a_reward(index: str) -> None:
    from yatt_workloads.retrieval.corpus import read_corpus

    folder = Path(index).parent
    corpus = read_corpus(folder / "inputs")
    questions = corpus.queries["test"]
    rewards = []
    for words, (relevant,) in zip(questions.words, questions.relevant, strict=True):
        text = " ".join(corpus.vocabulary[word - 2] if word > 1 else "unknown" for word in words)
        rewards.append(reciprocal_rank(Prompt(f"d{relevant}"), text, index=index))
    assert np.mean(rewards) == pytest.approx(float((folder / "mrr").read_text()), abs=1e-6) != 0
    hits = search(text, index=index, limit=4)
    assert len(hits) == 4 and [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert reciprocal_rank(Prompt(hits[1]["document"]), text, index=index) == 0.5


def test_what_is_empty_or_no_number_is_never_a_good_score(index: str, tmp_path: Path) -> None:
    assert reciprocal_rank(Prompt("d1"), " \n", index=index) == 0
    assert reciprocal_rank(Prompt("no such document"), "c1a", index=index) == 0
    with pytest.raises(ValueError, match="the prompt has no answer"):
        reciprocal_rank(Prompt(None), "c1a", index=index)
    with pytest.raises(ValueError, match="the query is empty"):
        search(" ", index=index)
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in Path(index).iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    vectors = np.load(broken / VECTORS)
    vectors[0] = np.nan
    np.save(broken / VECTORS, vectors)
    with pytest.raises(ValueError, match="1 of 60 vectors are not finite"):
        reciprocal_rank(Prompt("d1"), "c1a", index=str(broken))
