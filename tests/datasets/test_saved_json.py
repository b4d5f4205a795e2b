"""Data sets as `datasets` 5 and pandas write them: JSON texts, answers taken for times, indices, filled-in keys, subsets."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.datasets.reading import SOURCE, read
from tests.datasets.test_source_files import files, hugging_face, write_parquet
from yatt_core.errors import ConfigurationError, DataError

JSON = Path(__file__).parent / "hugging_face" / "json"
SAVED: dict[str, Any] = {"kind": "huggingface", "path": str(JSON / "saved")}
PARQUET: dict[str, Any] = {"kind": "parquet", "path": str(JSON / "rows.parquet")}


@pytest.mark.parametrize("source", [SAVED, PARQUET])
def test_messages_of_different_keys_are_read_from_what_datasets_saves(source: dict[str, Any]) -> None:
    found = read({**source, "prompt_field": "messages", "answer_field": "meta.level"})
    assert [row.text for row in found] == [f"Look at {number}." for number in range(6)]
    assert [dict(row.reply[0].calls[0].arguments) for row in found[:2]] == [
        {"first": 0, "unit": None},
        {"city": "Oslo"},
    ]
    assert [row.answer for row in found[:2]] == ["I saw 0.", "1"]
    assert found[0].entry["meta"] == {"tags": ["a"]} and found[1].entry["meta"] == {"level": 1}


@pytest.mark.parametrize("source", [SAVED, PARQUET])
def test_answers_that_became_times_are_refused(source: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"column 'answer' holds values of type timestamp.*write the column as text"):
        read({**source, "prompt_field": "messages"})


WHEN = datetime.datetime(2024, 5, 1, 12, 30)


@pytest.mark.parametrize(
    ("values", "kind", "key"),
    [
        ([WHEN], pa.timestamp("ms"), "answer"),
        ([datetime.time(3, 4)], pa.time32("s"), "answer"),
        ([datetime.timedelta(hours=1)], pa.duration("s"), "answer"),
        ([{"truth": WHEN}], pa.struct([("truth", pa.timestamp("us"))]), "answer.truth"),
        ([[WHEN]], pa.list_(pa.timestamp("s")), "answer"),
    ],
)
def test_times_of_every_type_are_refused_as_answers(tmp_path: Path, values: Any, kind: pa.DataType, key: str) -> None:
    source = write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a"], "answer": pa.array(values, kind)}))
    with pytest.raises(DataError, match=rf"a\.parquet: column '{key}' holds values of type"):
        read({**source, "answer_field": key})
    for other in ("chosen_field", "rejected_field", "prompt_field"):
        with pytest.raises(DataError, match=rf"column '{key}' holds"):
            read({**source, "answer_field": "other", other: key})
    times = pa.table({"prompt": ["a"], "seen": pa.array(values, kind)})
    assert read(write_parquet(tmp_path / "b.parquet", times))[0].text == "a"


def test_days_are_given_back_as_they_are_written(tmp_path: Path) -> None:
    day = pa.array([datetime.date(2024, 5, 1)])
    nested = pa.array([{"truth": datetime.date(2024, 5, 2), "at": WHEN, "price": None, "blob": b"x"}])
    source = write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a"], "answer": day, "more": nested}))
    assert read(source)[0].answer == "2024-05-01"
    (row,) = read({**source, "answer_field": "more.truth"})
    assert row.answer == "2024-05-02"
    assert row.entry["more"] == {"truth": "2024-05-02", "at": "2024-05-01 12:30:00", "price": None}


def test_numbers_of_tables_are_answers_as_they_were_written(tmp_path: Path) -> None:
    for values, expected in (
        (pa.array([18, 2**60 + 1]), ["18", str(2**60 + 1)]),
        (pa.array([18.0, 0.25]), ["18.0", "0.25"]),
        (pa.array([0.1, 2.5], pa.float32()), ["0.1", "2.5"]),
        (pa.array([True, False]), ["true", "false"]),
    ):
        source = write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a", "b"], "answer": values}))
        assert [row.answer for row in read(source)] == expected


def test_indices_of_pandas_are_no_data(tmp_path: Path) -> None:
    frame = pd.DataFrame({"prompt": list("abcd"), "answer": list("1234")}, index=[7, 3, 5, 1])
    for table in (frame, frame.set_index("answer", append=True)):
        table.to_parquet(tmp_path / "a.parquet")
        assert "__index_level_0__" in pq.read_schema(tmp_path / "a.parquet").names
        first = read({"kind": "parquet", "path": str(tmp_path / "a.parquet")})[0]
        assert first.entry == {"prompt": "a", "answer": "1"}


def test_keys_that_a_table_filled_in_are_no_arguments(tmp_path: Path) -> None:
    def call(**arguments: Any) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
        ]

    def tool(**properties: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}

    rows = [
        {"messages": call(city="Oslo"), "tools": [tool(city={"type": "string"})]},
        {"messages": call(first=1), "tools": [tool(first={"type": "integer"})]},
    ]
    source = {**write_parquet(tmp_path / "a.parquet", rows), "prompt_field": "messages", "tools_field": "tools"}
    found = read(source)
    assert [dict(row.reply[0].calls[0].arguments) for row in found] == [{"city": "Oslo"}, {"first": 1}]
    assert [row.tools for row in found] == [tuple(row["tools"]) for row in rows]


def test_keys_that_a_table_filled_in_are_dropped_beside_values_that_json_lacks(tmp_path: Path) -> None:
    arguments = pa.struct([("city", pa.string()), ("first", pa.int64())])
    call = pa.struct([("function", pa.struct([("name", pa.string()), ("arguments", arguments)]))])
    message = pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("timestamp", pa.timestamp("s")),
            ("tool_calls", pa.list_(call)),
        ]
    )
    function = pa.struct([("name", pa.string()), ("description", pa.string()), ("parameters", pa.string())])
    tool = pa.struct([("type", pa.string()), ("function", function)])
    features = {"tools": [{"function": {"parameters": {"_type": "Json"}}}]}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema([("messages", pa.list_(message)), ("tools", pa.list_(tool))], metadata)
    parameters = {"type": "object", "properties": {"city": {"default": None}}}
    rows = [
        {
            "messages": [
                {"role": "user", "content": "q", "timestamp": WHEN},
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": given}}]},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": json.dumps(parameters)}}],
        }
        for given in ({"city": "Oslo"}, {"first": 1})
    ]
    source = write_parquet(tmp_path / "a.parquet", pa.Table.from_pylist(rows, schema))
    found = read({**source, "prompt_field": "messages", "tools_field": "tools"})
    assert [dict(row.reply[0].calls[0].arguments) for row in found] == [{"city": "Oslo"}, {"first": 1}]
    # Nulls in a JSON text are no filling.
    assert found[0].tools == ({"type": "function", "function": {"name": "f", "parameters": parameters}},)


def test_a_subset_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    files(folder, "easy/train-00000-of-00001.jsonl", "data/hard/train.jsonl")
    assert read(hugging_face(folder, subset="easy"))[0].origin == "train/train-00000-of-00001.jsonl:1"
    assert read(hugging_face(folder, subset="hard"))[0].origin == "train/train.jsonl:1"
    with pytest.raises(ConfigurationError, match="has no folder 'medium'; its folders: data, easy"):
        read(hugging_face(folder, subset="medium"))
    with pytest.raises(ConfigurationError, match=r"2 folders, .*subset"):
        read(hugging_face(folder))
    for outside in ("../d", "/etc", ""):
        with pytest.raises(ValueError, match=r"subset: .* is not the name of a folder below path"):
            SOURCE.validate_python(hugging_face(folder, subset=outside))
    assert len(read(hugging_face(JSON, subset="saved", prompt_field="messages", answer_field="meta.level"))) == 6


def test_floats_that_are_not_finite_are_no_answers(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b"], "answer": pa.array([np.nan, 1.5])})
    assert [row.answer for row in read(write_parquet(tmp_path / "a.parquet", table))] == [None, "1.5"]
