"""Prompts that are too long are left out or cut, and counted, if the spec says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.input_building.test_fitting import TINY
from tests.inputs.example_specs import VIRTUAL, run_spec, write_jsonl
from tests.prompts.questions import question
from yatt_core.errors import DataError
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import HELD_OUT, INPUTS, TRAIN
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt_files import PromptFile
from yatt_core.spec.run import RunSpec

MODEL = {"model": {"kind": "from_config", **TINY}}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spec_of(folder: Path, over_long: str, every: int = 4, **rest: Any) -> RunSpec:
    """Returns a spec of 40 rows; one in `every` has 30 characters where 20 tokens fit."""
    prompts = [
        f"{number:02}{LETTERS[number % 26 :]}{LETTERS[: number % 26]}{number:02}"
        if number % every == 0
        else f"q{number}"
        for number in range(40)
    ]
    rows = [{"prompt": prompt, "answer": "a"} for prompt in prompts]
    data = {"held_out": 4, "probe": 4, "max_prompt_tokens": 20, "over_long": over_long}
    return run_spec(write_jsonl(folder / "rows.jsonl", rows), data=data, **(rest or VIRTUAL))


def texts(run: Path, name: str = TRAIN) -> list[str]:
    return [prompt.text for prompt in PromptFile(run / INPUTS / name)]


@pytest.mark.parametrize("rest", [VIRTUAL, MODEL], ids=["virtual", "model"])
def test_long_prompts_are_left_out_and_counted(tmp_path: Path, rest: dict[str, Any]) -> None:
    spec = spec_of(tmp_path, "skip", **rest)
    run = tmp_path / "r"
    receipt = materialise(spec, run)
    assert receipt.over_long > 0
    assert not [text for text in texts(run) + texts(run, HELD_OUT) if len(text) == 30]
    assert receipt.train_prompts == len(texts(run)) < 32
    inputs = Inputs.open(run / INPUTS, spec)
    assert [inputs._training_prompt(0, row).text for row in range(receipt.train_prompts)] == texts(run)
    assert materialise(spec, run) == receipt, "the next session finds the same inputs"


@pytest.mark.parametrize(("over_long", "end"), [("cut_end", slice(2)), ("cut_start", slice(-2, None))])
@pytest.mark.parametrize("rest", [VIRTUAL, MODEL], ids=["virtual", "model"])
def test_long_prompts_keep_as_much_as_fits(tmp_path: Path, rest: dict[str, Any], over_long: str, end: slice) -> None:
    spec = spec_of(tmp_path, over_long, **rest)
    run = tmp_path / "r"
    receipt = materialise(spec, run)
    cut = [text for text in texts(run) if not text.startswith("q")]
    assert cut and receipt.train_prompts == 32
    assert all(text[end].isdigit() and len(text) < 30 for text in cut)
    codec = open_codec(spec, receipt.model_path)
    assert {len(codec.encode_prompt(question(text))) for text in cut} == {20}


def test_a_change_of_the_answer_gives_other_inputs(tmp_path: Path) -> None:
    digests = [materialise(spec_of(tmp_path, each), tmp_path / each).data_digest for each in ("skip", "cut_end")]
    assert len(set(digests)) == 2


def test_a_source_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.max_prompt_tokens: every held-out prompt"):
        materialise(spec_of(tmp_path, "skip", every=1), tmp_path / "r")
    assert not list((tmp_path / "r").iterdir())


def test_each_source_must_keep_a_training_prompt(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "skip")
    rows = [{"prompt": f"{number:02}{LETTERS}", "answer": "a"} for number in range(8)]
    more = write_jsonl(tmp_path / "more.jsonl", rows)
    sources = [*spec.data.model_dump(mode="json")["sources"], {**more, "weight": 0.01}]
    both = spec.model_copy(
        update={"data": type(spec.data).model_validate({**spec.data.model_dump(mode="json"), "sources": sources})}
    )
    with pytest.raises(DataError, match=r"every training prompt of data\.sources\.1 "):
        materialise(both, tmp_path / "r")
