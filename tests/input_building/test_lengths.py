"""The inputs are the same whether prompts are encoded or their bytes decide, and whoever computes the bounds."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.inputs.example_specs import run_spec, write_jsonl
from tests.matrix import in_verify
from tests.models.folders import make_folder
from yatt_core.digests import json_digest
from yatt_core.errors import DataError
from yatt_core.input_building import bounds_ahead, lengths, materialise
from yatt_core.input_building.materialise import _row_digest
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.prompts.prompt_files import SCHEMA, PromptFile, PromptWriter, column_of
from yatt_core.spec import RunSpec

EXACT = {"parts": [{"name": "exact", "function": "exact_match"}]}
WORDS = ("question", "longer words", "é", "漢字", "<|im_end|>", "\n", "7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "model")


def spec_of(folder: Path, tmp_path: Path, seed: int, over_long: str) -> RunSpec:
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(120):
        text = f"{number} " + " ".join(chance.choices(WORDS, k=chance.randint(1, 12)))
        turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]
        rows.append({"prompt": text if chance.random() < 0.7 else turns, "answer": str(number)})
    return run_spec(
        write_jsonl(tmp_path / "rows.jsonl", rows),
        data={"held_out": 8, "probe": 4, "max_prompt_tokens": 90, "over_long": over_long},
        model={"kind": "folder", "path": str(folder)},
        rewards=EXACT,
    )


def outcome(spec: RunSpec, run: Path) -> str:
    """Returns the manifest, or what is wrong."""
    try:
        materialise.materialise(spec, run)
    except DataError as error:
        return str(error)
    return (run / "inputs" / "manifest.json").read_text()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("over_long", ["refuse", "skip"])
def test_results_are_those_of_a_full_count(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, over_long: str
) -> None:
    spec = spec_of(folder, tmp_path, seed, over_long)
    encoded: list[str] = []
    whole = PromptCodec.encode_prompt
    monkeypatch.setattr(
        PromptCodec, "encode_prompt", lambda self, prompt: encoded.append(prompt.prompt_id) or whole(self, prompt)
    )
    found = outcome(spec, tmp_path / "quick")
    few = len(encoded)
    monkeypatch.setattr(lengths, "bound_of", lambda spec, codec: None)
    assert outcome(spec, tmp_path / "full") == found
    assert few < (len(encoded) - few), "some prompts were not encoded"


def test_of_equally_long_prompts_the_first_is_recorded(folder: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"question {number % 7} {number:03}", "answer": "1"} for number in range(60)]
    spec = run_spec(write_jsonl(tmp_path / "rows.jsonl", rows), data={"held_out": 4, "probe": 4}, rewards=EXACT,
                    model={"kind": "folder", "path": str(folder)})  # fmt: skip
    assert json.loads(outcome(spec, tmp_path / "r"))["longest_prompt"]["prompt_id"].endswith("rows.jsonl:5")


@pytest.mark.parametrize("lost", [False, True], ids=["told", "lost"])
@pytest.mark.parametrize("over_long", ["skip", *in_verify("refuse")])
def test_a_second_process_that_computes_bounds_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_long: str, lost: bool
) -> None:
    spec = spec_of(folder, tmp_path, 5, over_long)
    wanted = outcome(spec, tmp_path / "alone")
    monkeypatch.setattr(bounds_ahead, "LEAST_BYTES", 0)
    monkeypatch.setattr(bounds_ahead, "BATCH_PROMPTS", 16)
    made: list[bounds_ahead.BoundsAhead] = []
    start = bounds_ahead.BoundsAhead.__init__

    def started(self: bounds_ahead.BoundsAhead, spec: RunSpec) -> None:
        start(self, spec)
        made.append(self)
        if lost:
            self._process.kill()

    monkeypatch.setattr(bounds_ahead.BoundsAhead, "__init__", started)
    monkeypatch.setattr(bounds_ahead.os, "sched_getaffinity", lambda _: {0, 1})
    assert outcome(spec, tmp_path / "helped") == wanted
    (ahead,) = made
    assert bool(ahead.bounds) is not lost and ahead._process.poll() is not None
    assert all(number < 120 for number in ahead.bounds)


def test_a_reading_that_fails_leaves_nothing_of_the_second_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds_ahead, "WAITING", 1)
    monkeypatch.setattr(bounds_ahead, "BATCH_PROMPTS", 1)
    ahead = bounds_ahead.BoundsAhead(spec_of(folder, tmp_path, 5, "refuse"))
    prompts = [Prompt(0, number, f"p{number}", "a", None, {}) for number in range(3)]
    reading = ahead.passing(prompts)
    for _ in prompts:
        next(reading)
    closing = threading.Thread(target=ahead.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive() and not ahead._thread.is_alive() and ahead._process.poll() is not None


@pytest.mark.parametrize(
    "values", [["a", "é漢", ""], ["x", None, "y" * 300], [None], [None, None, "z"] * 9, ["🎈"] * 3]
)
def test_columns_are_those_of_pyarrow(values: list[str | None]) -> None:
    assert column_of(values, pa.large_string()).equals(pa.array(values, pa.large_string()))
    numbers = list(range(len(values)))
    for kind in (pa.int32(), pa.int64()):
        assert column_of(numbers, kind).equals(pa.array(numbers, kind))


def test_digests_of_rows_are_those_of_their_parts_as_json(tmp_path: Path) -> None:
    plain = Prompt(0, 3, "0/a:4", "é <b>", None, {"b": [1, 2.5], "a": "é"})
    talk = Prompt(1, 0, "1/a:1", "t", "x", {}, ("m",), (Message("user", "t"),), tools=({"name": "f"},))
    for prompt in (plain, talk):
        row: list[Any] = ["train.parquet", prompt.source, prompt.index, prompt.prompt_id, prompt.text, prompt.answer]
        row.append(dict(prompt.entry))
        if prompt.messages:
            row += [
                {"messages": [each.plain() for each in prompt.messages]},
                {"tools": [{"name": "f"}]},
                list(prompt.media),
            ]
        with PromptWriter(tmp_path / "p.parquet", with_media=True) as writer:
            assert _row_digest("train.parquet", prompt, writer.add(prompt)) == json_digest(row)
        assert list(PromptFile(tmp_path / "p.parquet")) == [prompt]
        assert [each.text for each in PromptFile(tmp_path / "p.parquet").questions()] == [prompt.text]


def test_a_group_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PromptWriter(tmp_path / "p.parquet", with_media=False)

    def fail(table: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(writer._writer, "write_table", fail)
    with pytest.raises(OSError, match="no space"), writer:
        writer.add(Prompt(0, 0, "a", "b", None, {}))
    assert SCHEMA.names[0] == "source"
