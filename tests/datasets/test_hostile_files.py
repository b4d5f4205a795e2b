"""Damaged and malformed data files: each is reported by name before a run starts, and none hangs or crashes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ops.preflight.run import check_before_start
from tests.datasets.test_source_files import SAVED, SMALL, hugging_face, rows, train, write_parquet
from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec, write_jsonl
from tests.ops.seeding import toy_spec
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.spec.reading.documents import absolute_path


def write_stream(folder: Path, *columns: pa.Array, names: list[str]) -> dict[str, Any]:
    folder.mkdir()
    batch = pa.RecordBatch.from_arrays(list(columns), names=names)
    with pa.OSFile(str(folder / "train.arrow"), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    return hugging_face(folder)


def texts_at(*offsets: int) -> pa.Array:
    """Returns texts that end at the offsets a damaged file claims: [len(offsets) - 1]."""
    return pa.Array.from_buffers(
        pa.string(), len(offsets) - 1, [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"abcdefgh")]
    )


@pytest.mark.parametrize(
    "column",
    [
        texts_at(0, 5, 2, 8),
        pa.StructArray.from_arrays([texts_at(0, 5, 2, 8)], ["level"]),
        pa.Array.from_buffers(pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]),
    ],
    ids=["offsets", "offsets-below", "text"],
)
def test_a_damaged_arrow_stream_is_refused_before_its_texts_are_made(tmp_path: Path, column: pa.Array) -> None:
    prompts = pa.array([f"q{i}" for i in range(len(column))])
    with pytest.raises(DataError, match=r"train\.arrow: cannot be read: .*(offset|UTF8)"):
        train(write_stream(tmp_path / "d", prompts, column, names=["prompt", "note"]))


def test_columns_that_share_a_name_are_refused(tmp_path: Path) -> None:
    texts = pa.array(["a", "b", "c", "d"])
    table = pa.Table.from_arrays([texts, texts, texts], names=["prompt", "answer", "answer"])
    with pytest.raises(DataError, match=r"a\.parquet: two columns .*'answer'"):
        train(write_parquet(tmp_path / "a.parquet", table))
    below = pa.StructArray.from_arrays([texts, texts], ["x", "x"])
    with pytest.raises(DataError, match=r"train\.arrow: two columns .*'x'"):
        train(write_stream(tmp_path / "d", texts, below, names=["prompt", "meta"]))
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("prompt,answer,prompt\na,1,b\n")
    with pytest.raises(DataError, match=r"a\.csv: two columns .*'prompt'"):
        train(hugging_face(tmp_path / "csv"))


def test_a_number_past_the_largest_is_named_by_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "score": 1e400}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*1e400 .*1\.8e308"):
        train({"kind": "jsonl", "path": str(tmp_path / "a.jsonl")})


def test_an_answer_field_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    wrong = {"answer_field": "anser"}
    for source in (write_jsonl(tmp_path / "a.jsonl", rows(9)), write_parquet(tmp_path / "a.parquet", rows(9))):
        with pytest.raises(DataError, match=r"none of the 9 train rows has the key 'anser' .*did you mean 'answer'"):
            train({**source, **wrong})
    some = write_jsonl(tmp_path / "b.jsonl", [*rows(9), {"prompt": "c", "anser": None}])
    assert len(train({**some, **wrong})) == 7
    none = write_jsonl(tmp_path / "c.jsonl", [{"prompt": row["prompt"]} for row in rows(9)])
    assert [prompt.answer for prompt in train(none)] == [None] * 6


@pytest.mark.parametrize("weight", [1e308, 1_000_001])
def test_a_weight_past_its_bound_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="less than or equal to 1000000"):
        run_spec({"kind": "jsonl", "path": "a.jsonl", "weight": weight})
    assert run_spec({"kind": "jsonl", "path": "a.jsonl", "weight": 1e6}).data.sources[0].weight == 1e6


FILE = {"filename": "data-00000-of-00001.arrow"}


@pytest.mark.parametrize(
    ("state", "key"),
    [
        ({}, "_data_files: Field required"),
        ({"_data_files": []}, "_data_files: .*at least 1 item"),
        ({"_data_files": None}, "_data_files: "),
        ({"_data_files": ["a.arrow"]}, r"_data_files\.0: "),
        ({"_data_files": [5]}, r"_data_files\.0: "),
        ({"_data_files": [{}]}, r"_data_files\.0\.filename: Field required"),
        ({"_data_files": [{"filename": 5}]}, r"_data_files\.0\.filename: "),
        ({"_data_files": [{"filename": "../a.arrow"}]}, r"_data_files\.0\.filename: .*plain"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, r"_data_files\.0\.filename: .*plain"),
        ({"_data_files": [FILE], "_split": 5}, "_split: "),
        ([], "Input should be an object"),
    ],
)
def test_a_damaged_state_of_a_saved_dataset_is_reported(tmp_path: Path, state: Any, key: str) -> None:
    saved = shutil.copytree(SAVED / "test", tmp_path / "saved")
    (saved / "state.json").write_text(json.dumps(state))
    with pytest.raises(ConfigurationError, match=rf"state\.json .*: {key}"):
        train(hugging_face(saved))


@pytest.mark.parametrize(
    ("splits", "key"),
    [(None, "splits"), (5, "splits"), (["train", 5], r"splits\.1"), (["..", "train"], r"splits\.0: .*plain")],
)
def test_damaged_splits_of_a_saved_dataset_are_reported(tmp_path: Path, splits: Any, key: str) -> None:
    saved = shutil.copytree(SAVED, tmp_path / "saved")
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(ConfigurationError, match=rf"dataset_dict\.json .*: {key}"):
        train(hugging_face(saved))


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    good = write_jsonl(tmp_path / "a.jsonl", rows(9))
    for strange in (str(tmp_path / "pipe"), "/dev/zero"):
        for source, key in (({**good, "path": strange}, "path"), ({**good, "held_out_path": strange}, "held_out_path")):
            with pytest.raises(ConfigurationError, match=rf"data\.sources\.0\.{key}: {strange} .*regular file"):
                check_before_start(tmp_path / "home", run_spec(source, data=SMALL, **VIRTUAL))
            with pytest.raises(ConfigurationError, match="regular file"):
                train(source, held_out=2)
    saved = shutil.copytree(SAVED, tmp_path / "saved")
    (saved / "train" / "state.json").unlink()
    os.mkfifo(saved / "train" / "state.json")
    with pytest.raises(ConfigurationError, match=r"state\.json cannot be read: .*regular file"):
        train(hugging_face(saved))


LONG = "/" + 300 * "x"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "huggingface"])
def test_names_that_are_too_long_are_configuration_errors(tmp_path: Path, kind: str) -> None:
    for spec in (
        run_spec({"kind": kind, "path": LONG}, data=SMALL, **VIRTUAL),
        run_spec({**write_jsonl(tmp_path / "a.jsonl", rows(9))}, data=SMALL, model={"kind": "folder", "path": LONG}),
    ):
        with pytest.raises(
            ConfigurationError, match=r"(data\.sources|model\.path).*: /x+ cannot be read: File name too"
        ):
            check_before_start(tmp_path / "home", spec)
    with pytest.raises(ConfigurationError, match="x: File name too long; choose another folder with --home"):
        check_before_start(Path(LONG), toy_spec())


def test_more_entries_of_a_task_than_can_be_drawn_are_refused(tmp_path: Path) -> None:
    spec = run_spec({**SPELL, "size": 10**12}, **VIRTUAL)
    with pytest.raises(
        ConfigurationError, match=r"data\.sources\.0\.size: 1,000,000,000,000 entries .* at most 10,000,000"
    ):
        check_before_start(tmp_path / "home", spec)


def test_paths_that_name_nothing_are_configuration_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"a\*\*b .*entire path component"):
        train({"kind": "parquet", "path": str(tmp_path / "a**b")})
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigurationError, match="path 'loop': "):
        absolute_path("loop", tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / os.fsdecode(b"train-\xff.jsonl")).write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigurationError, match=r"'train-\\udcff\.jsonl' is not UTF-8"):
        train(hugging_face(tmp_path / "d"))
    with pytest.raises(ConfigurationError, match=r"\\udcff/a\.jsonl': is not UTF-8"):
        absolute_path("a.jsonl", tmp_path / os.fsdecode(b"\xff"))
