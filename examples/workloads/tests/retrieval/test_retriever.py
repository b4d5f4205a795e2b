"""An exported retriever finds what the run's own evaluation finds; as a tool and as a reward, it never takes nothing for good."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from examples.workloads.tests.retrieval.exported import exported_retriever
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.tools.toolbox import Toolbox
from yatt_workloads.retrieval import retriever
from yatt_workloads.retrieval.corpus import SETTINGS, VOCABULARY
from yatt_workloads.retrieval.in_rollouts import reciprocal_rank, search
from yatt_workloads.retrieval.records import DOCUMENTS
from yatt_workloads.retrieval.retriever import VECTORS, WEIGHTS, Retriever


@dataclass(frozen=True)
class Prompt:
    answer: str | None


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("retriever")
    exported, run = exported_retriever(folder)
    with run.ledger() as ledger:
        (folder / "mrr").write_text(str(ledger.metrics.history(run.run, "evaluation/test/mrr_at_10")[-1][1]))
    (folder / "inputs").symlink_to(run.folder / "inputs")
    return str(exported)


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
    with pytest.raises(ValueError, match=r"the prompt's answer 'no such document' is no document of .*index"):
        reciprocal_rank(Prompt("no such document"), "c1a", index=index)
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


def test_the_tool_answers_a_call_of_a_rollout_within_the_limits_of_the_docs(index: str) -> None:
    function = "yatt_workloads.retrieval.in_rollouts:search"
    tool = {"name": "search", "function": function, "options": {"index": index}}
    with closing(Toolbox(ToolsSpec.model_validate({"functions": [tool]}))) as toolbox:
        ((_, answer),) = toolbox.answer({7: ToolCall("search", {"query": "c1a", "limit": 2})})
        assert not answer.error and answer.text == json.dumps(search("c1a", index=index, limit=2))
        ((_, empty),) = toolbox.answer({7: ToolCall("search", {"query": " "})})
        assert "the query is empty; expected at least one word" in empty.text


def test_a_folder_whose_files_do_not_belong_together_is_refused(index: str, tmp_path: Path) -> None:
    for path in Path(index).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    vectors = np.load(tmp_path / VECTORS)
    for changed in (vectors[:-1], vectors.astype(np.float64), vectors[:, :-1]):
        np.save(tmp_path / VECTORS, changed)
        with pytest.raises(ValueError, match=r"vectors.npy: has numbers of type .*; expected float32 and \[60, 16\]"):
            Retriever(tmp_path)


@pytest.mark.parametrize("name", [SETTINGS, VOCABULARY, WEIGHTS, DOCUMENTS])
def test_a_file_of_something_else_is_refused(name: str, index: str, tmp_path: Path) -> None:
    for path in Path(index).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings = json.loads((tmp_path / SETTINGS).read_text())
    for text in ('["a"]', json.dumps({**settings, "width": 32}), "{}"):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=r"its files do not belong together|the settings of a retrieval run"):
            Retriever(tmp_path)


def exported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *paths: str | Path) -> str:
    """Returns what an export says that is refused."""
    monkeypatch.setattr(sys, "argv", ["retriever", *map(str, paths)])
    with pytest.raises(SystemExit) as ended:
        retriever.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_an_export_of_no_checkpoint_or_of_another_one_is_refused(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = Path(index).parent / "inputs"
    target = tmp_path / "index"
    missing = exported(monkeypatch, capsys, inputs, tmp_path / "nowhere", target)
    assert f"{tmp_path}/nowhere: its weights cannot be read: " in missing
    others = tmp_path / "others"
    (others / "weights").mkdir(parents=True)
    save_file({"0.note.entities": torch.zeros(2, 2)}, others / "weights" / "model-00001-of-00001.safetensors")
    assert "others: its weights cannot be read: " in exported(monkeypatch, capsys, inputs, others, target)
    changed = tmp_path / "inputs"
    changed.mkdir()
    for path in inputs.resolve().iterdir():
        (changed / path.name).write_bytes(path.read_bytes())
    settings = json.loads((changed / SETTINGS).read_text())
    (changed / SETTINGS).write_text(json.dumps({**settings, "method": "late"}))
    said = exported(monkeypatch, capsys, changed, others, target)
    assert "method late trains no dual encoder" in said
    (changed / SETTINGS).write_text('{"rats": 1}')
    assert "expected the settings of a retrieval run" in exported(monkeypatch, capsys, changed, others, target)
    assert not target.exists()


def test_an_export_over_a_folder_that_exists_is_refused(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is read, which may take long."""
    nothing = tmp_path / "nothing"
    assert f"{index}: File exists; expected a new folder" in exported(monkeypatch, capsys, nothing, nothing, index)
