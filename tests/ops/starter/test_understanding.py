"""Held-out rows are used only if they say what the training rows say, and files share one system message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.starter.looks import ModelLook, look_at_data
from ops.starter.recognition.recognised import RecognitionOptions
from ops.starter.understanding import SourceMeaning, Understanding, understand
from tests.ops.starter.numbered_rows import MODEL, NOTHING, many
from tests.ops.starter.sample_files import user, write_jsonl
from yatt_core.errors import ConfigurationError

CHECK = "def check(c):\n    assert c() == 1\n"


def understood(*paths: Path, asked: RecognitionOptions = NOTHING) -> Understanding:
    network = ModelLook(path=Path("model"), parameters=10, positions=128, abilities=MODEL)
    return understand([look_at_data(path) for path in paths], network, asked)


def with_test(folder: Path, train: dict[str, Any], test: dict[str, Any]) -> SourceMeaning:
    """Returns what training rows mean beside a file of test rows."""
    write_jsonl(folder / "test.jsonl", many(**{**train, **test}))
    (source,) = understood(write_jsonl(folder / "train.jsonl", many(**train))).sources
    return source


MEDICINE = {"question": "§ q", "opa": "x", "opb": "y", "opc": "z", "opd": "w", "cop": (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        (MEDICINE, {"cop": -1}, "whose answers under 'cop' are all '-1', which no training row has"),
        ({"prompt": "§?", "answer": ("12", "4")}, {"answer": "?"}, "whose answers under 'answer' have another form"),
        ({"prompt": "§?", "answer": ("1/2", "x+1")}, {"answer": "hidden"}, "have another form"),
        ({"prompt": "§? A. x B. y", "answer": ("A", "B")}, {"answer": ("A", "E")}, "have another form"),
        (
            {"prompt": "§?", "completion": "y", "label": (True, False)},
            {"label": -1},
            "whose labels under 'label' are -1",
        ),
        ({"prompt": "§?", "test": CHECK, "entry_point": "f"}, {"test": "secret ="}, "whose tests cannot be read"),
        ({"prompt": "§?", "answer": ("12", "4")}, {"answer": {"a": 1}}, "have another form"),
    ],
)
def test_rows_whose_answers_are_secret_are_not_held_out(
    tmp_path: Path, train: dict[str, Any], test: dict[str, Any], says: str
) -> None:
    source = with_test(tmp_path, train, test)
    assert dict(source.held_out) == {} and source.held_out_rows == ()
    assert any(says in sentence and sentence.startswith("not used: test.jsonl") for sentence in source.says), (
        source.says
    )


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (MEDICINE, {"cop": 3}),
        ({"prompt": "§?", "answer": ("12", "4")}, {"answer": ("7", "1,000")}),
        ({"prompt": "§?", "answer": ("1/2", "x+1")}, {"answer": ("3", "5")}),
        ({"prompt": "§?", "completion": "y", "label": (True, False)}, {"label": False}),
        ({"messages": [*user("§?"), {"role": "assistant", "content": "y"}]}, {}),
    ],
)
def test_rows_with_answers_of_the_same_form_are_held_out(
    tmp_path: Path, train: dict[str, Any], test: dict[str, Any]
) -> None:
    source = with_test(tmp_path, train, test)
    assert set(source.held_out) == {"held_out_path"} and len(source.held_out_rows) == 12


def test_the_next_split_takes_the_place_of_one_with_secret_answers(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "validation.jsonl", many(**MEDICINE))
    source = with_test(tmp_path, MEDICINE, {"cop": -1})
    assert source.held_out["held_out_path"].endswith("validation.jsonl")


def test_a_mixture_asks_for_the_form_that_the_reward_reads(tmp_path: Path) -> None:
    asking = write_jsonl(tmp_path / "a.jsonl", many(problem=r"§? Put it in \boxed{}.", answer=("1/2", "x+1")))
    bare = write_jsonl(tmp_path / "b.jsonl", many(problem="§?", answer=("1/3", "x+2")))
    assert understood(asking).system_prompt is None
    for paths in ((asking, bare), (bare, asking)):
        assert understood(*paths).system_prompt == r"Put the final answer in \boxed{}."


def test_files_that_need_different_rewards_are_refused(tmp_path: Path) -> None:
    numbers = write_jsonl(tmp_path / "a.jsonl", many(problem="§?", answer=("12", "4")))
    formulas = write_jsonl(tmp_path / "b.jsonl", many(problem="§?", answer=("1/3", "x+2")))
    with pytest.raises(ConfigurationError, match="different rewards"):
        understood(numbers, formulas)
