"""Prompt files: Parquet, Hugging Face folders and CSV give the same prompts as JSON Lines; unusable files are named."""

from __future__ import annotations

import datetime
import decimal
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.inputs.example_specs import run_spec, write_jsonl
from yatt_core.datasets.data_files import data_files_below, split_of
from yatt_core.datasets.sources import LOOKED_OVER, collect_prompts, look_over
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.prompts.stream import Prompt

SAVED = Path(__file__).parent / "hugging_face" / "saved"
SMALL = {"held_out": 2, "probe": 1}


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {i} plus 1?", "answer": str(i + 1)} for i in range(start, start + count)]


def write_parquet(path: Path, table: list[dict[str, Any]] | pa.Table, group: int = 7) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table if isinstance(table, pa.Table) else pa.Table.from_pylist(table), path, row_group_size=group)
    return {"kind": "parquet", "path": str(path)}


def hugging_face(path: Path, **rest: Any) -> dict[str, Any]:
    return {"kind": "huggingface", "path": str(path), **rest}


def train(*sources: dict[str, Any], **data: int) -> list[Prompt]:
    found = collect_prompts(run_spec(*sources, data={**SMALL, **data}).data, 0)
    return [prompt for prompts in found.train for prompt in prompts]


def tasks(prompts: Any) -> list[tuple[Any, ...]]:
    return [(p.source, p.index, p.text, p.answer, dict(p.entry), p.media) for p in prompts]


def test_every_format_gives_the_same_prompts_and_parts(tmp_path: Path) -> None:
    table = rows(700)  # more than are converted to Python objects at once
    (tmp_path / "csv").mkdir()
    lines = ["prompt,answer", *(f'"{row["prompt"]}",{row["answer"]}' for row in table)]
    (tmp_path / "csv" / "train.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "loose").mkdir()
    write_jsonl(tmp_path / "loose" / "train-00000-of-00002.jsonl", table[:300])
    write_jsonl(tmp_path / "loose" / "train-00001-of-00002.jsonl", table[300:])
    write_jsonl(tmp_path / "loose" / "test-00000-of-00001.jsonl", rows(3, 5000))
    write_parquet(tmp_path / "folder" / "a" / "1.parquet", table[:500])
    write_parquet(tmp_path / "folder" / "b.parquet", table[500:])
    (tmp_path / "folder" / "_metadata.parquet").write_bytes(b"")
    sources = [
        write_jsonl(tmp_path / "a.jsonl", table),
        write_parquet(tmp_path / "one.parquet", table),
        {"kind": "parquet", "path": str(tmp_path / "folder")},
        {"kind": "parquet", "path": str(tmp_path / "fold*" / "**" / "[ab1].parquet")},
        hugging_face(tmp_path / "csv"),
        hugging_face(tmp_path / "loose"),
    ]
    collections = [collect_prompts(run_spec(source, data={"held_out": 20, "probe": 10}).data, 0) for source in sources]
    for part in ("held_out", "probe"):
        assert all(tasks(getattr(c, part)) == tasks(getattr(collections[0], part)) for c in collections), part
    walked = [list(collection.train[0]) for collection in collections]
    assert len(walked[0]) == 670 and all(tasks(found) == tasks(walked[0]) for found in walked)
    assert [found[0].prompt_id for found in walked] == [
        "0/train/a.jsonl:11",
        "0/train/one.parquet:11",
        "0/train/a/1.parquet:11",
        "0/train/folder/a/1.parquet:11",
        "0/train/train.csv:11",
        "0/train/train-00000-of-00002.jsonl:11",
    ]
    assert walked[2][-1].prompt_id == "0/train/b.parquet:180"
    assert all(len({prompt.prompt_id for prompt in found}) == 670 for found in walked)


def test_a_folder_saved_by_datasets(tmp_path: Path) -> None:
    prompts = train(hugging_face(SAVED))
    assert [p.text for p in prompts] == [f"How red is it? {i}" for i in range(1, 6)]
    assert [p.prompt_id for p in prompts][2:4] == [
        "0/train/train/data-00000-of-00002.arrow:4",
        "0/train/train/data-00001-of-00002.arrow:1",
    ]
    chats = train(hugging_face(SAVED, prompt_field="chat"))
    assert [p.text for p in chats] == [p.text for p in prompts]
    assert chats[0].entry["chat"] == [{"role": "user", "content": "How red is it? 1"}]
    with_test = collect_prompts(run_spec(hugging_face(SAVED, held_out_split="test"), data=SMALL).data, 0)
    assert [p.prompt_id for p in with_test.held_out] == [
        f"0/held_out/test/data-00000-of-00001.arrow:{row}" for row in (1, 2)
    ]
    assert [p.answer for p in with_test.train[0]] == [str(i) for i in range(1, 8)]
    # A single split, as Dataset.save_to_disk writes it.
    alone = shutil.copytree(SAVED / "test", tmp_path / "alone")
    state = json.loads((alone / "state.json").read_text())
    assert [p.text for p in train(hugging_face(alone))] == ["How red is it? 9"]
    (alone / "state.json").write_text(json.dumps({**state, "_split": "test"}))
    assert [p.text for p in train(hugging_face(alone, split="test"))] == ["How red is it? 9"]
    with pytest.raises(ConfigurationError, match="has no split 'train'; it has test"):
        train(hugging_face(alone))


def test_values_that_json_lacks_become_text_or_null_or_are_left_out(tmp_path: Path) -> None:
    table = pa.table(
        {
            "prompt": [f"q{i}" for i in range(4)],
            "day": [datetime.date(2024, 5, i + 1) for i in range(4)],
            "price": [decimal.Decimal("1.50")] * 4,
            "share": [float("nan"), 0.5, float("inf"), None],
            "blob": [b"x"] * 4,
            "nested": [{"level": 3, "scores": [float("nan")]}] * 4,
            "word": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
            "seen": [[datetime.date(2024, 5, 1)]] * 4,
        }
    )
    (prompt,) = train(write_parquet(tmp_path / "a.parquet", table))
    assert prompt.answer is None
    assert prompt.entry == {
        "prompt": "q1",
        "day": "2024-05-02",
        "price": "1.50",
        "share": 0.5,
        "nested": {"level": 3, "scores": [None]},
        "word": "b",
    }


def with_row(number: int, **values: Any) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = rows(20)
    table[number - 1] |= values
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (with_row(9, prompt=None), r"a\.parquet:9: 'prompt' must be .*string"),
        (with_row(9, prompt=" "), r"a\.parquet:9: 'prompt' must be .*string"),
        ([{"promt": "a"}], r"a\.parquet:1: the row has no key 'prompt' for the prompt .*did you mean 'promt'"),
        ([{"prompt": "a", "answer": {"x": 3}}], r"a\.parquet:1: 'answer' is an object; .*string.*answer\.x"),
        ([{"prompt": "a", "answer": b"3"}], r"a\.parquet:1: 'answer' is bytes; .*string"),
        ([{"prompt": []}], r"a\.parquet:1: 'prompt'.* no messages"),
        (
            [{"prompt": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}],
            r"a\.parquet:1: 'prompt': .*message 2 has the role 'robot'",
        ),
        (pa.table({"prompt": pa.array([], pa.string())}), r"a\.parquet: the file has no rows"),
    ],
)
def test_bad_rows_of_parquet_are_named(tmp_path: Path, table: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(write_parquet(tmp_path / "a.parquet", table))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", rows(2000), group=2000)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[200:600] = b"?" * 400
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read"):
        train(source)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read"):
        train(source)
    saved = shutil.copytree(SAVED, tmp_path / "saved")
    arrow = saved / "train" / "data-00001-of-00002.arrow"
    arrow.write_bytes(arrow.read_bytes()[:900])
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow: cannot be read"):
        train(hugging_face(saved))
    arrow.unlink()
    with pytest.raises(ConfigurationError, match=r"state\.json names data-00001-of-00002\.arrow"):
        train(hugging_face(saved))
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("prompt,answer\na,1\nb\n")
    with pytest.raises(DataError, match=r"a\.csv:2: .*number.* of values"):
        train(hugging_face(tmp_path / "csv"))


def files(folder: Path, *names: str) -> dict[str, Any]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(folder / name, rows(20)) if name.endswith("l") else (folder / name).write_text("prompt\na\n")
    folder.mkdir(exist_ok=True)
    return hugging_face(folder)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"no data files \(\.jsonl, \.json, \.parquet, \.arrow, \.csv, \.tsv, \.ndjson; .*\.gz or \.zst\)"),
        (("test.jsonl", "dev.jsonl"), "has no split 'train'; it has test, validation"),
        (("en/train.jsonl", "de/train.jsonl"), "split 'train' .*2 folders, de, en;"),
        (("train-1.jsonl", "train-2.csv"), r"split 'train' .*csv, jsonl"),
        (("train-test.jsonl",), "train-test.jsonl .*splits: test, train"),
    ],
)
def test_ambiguous_folders_are_refused(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(files(tmp_path / "d", *names))


@pytest.mark.parametrize(
    ("names", "split", "read"),
    [
        (("one.jsonl", "two.jsonl"), "train", ["one.jsonl", "two.jsonl"]),
        (
            ("data/train_sft-00000-of-00001.jsonl", "data/train_gen-00000-of-00001.jsonl"),
            "train_sft",
            ["data/train_sft-"],
        ),
        (("test/metadata.jsonl", "train/metadata.jsonl"), "train", ["train/metadata.jsonl"]),
        (("training.jsonl", "other.jsonl", "README.jsonl"), "train", ["training.jsonl"]),
        (("eval.jsonl", "train.jsonl", ".cache/train.jsonl", "dataset_info.json"), "test", ["eval.jsonl"]),
    ],
)
def test_names_determine_the_split(tmp_path: Path, names: tuple[str, ...], split: str, read: list[str]) -> None:
    prompts = train({**files(tmp_path / "d", *names), "split": split})
    found = list(dict.fromkeys(p.prompt_id.removeprefix("0/train/").partition(":")[0] for p in prompts))
    assert len(found) == len(read) and all(name.startswith(start) for name, start in zip(found, read, strict=True))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "parquet", "path": "/nowhere/a.parquet"}, "Parquet files .*/nowhere/a.parquet"),
        ({"kind": "parquet", "path": "/nowhere/*.parquet"}, r"Parquet files .*/nowhere/\*\.parquet"),
        ({"kind": "huggingface", "path": "/nowhere"}, "folder /nowhere"),
        ({"kind": "huggingface", "path": str(SAVED), "split": "dev"}, "has no split 'dev'; it has test, train"),
    ],
)
def test_missing_files_are_configuration_errors(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(source)


def test_a_saved_selection_of_rows_is_refused(tmp_path: Path) -> None:
    saved = shutil.copytree(SAVED / "test", tmp_path / "saved")
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "i.arrow"}]}))
    with pytest.raises(ConfigurationError, match=r"saved .*selection of rows.*save it again"):
        train(hugging_face(saved))


def test_looking_over_finds_the_first_mistakes_within_its_bound(tmp_path: Path) -> None:
    data = run_spec(write_parquet(tmp_path / "a.parquet", with_row(15, prompt=" ")), data=SMALL).data
    with pytest.raises(DataError, match=r"a\.parquet:15: 'prompt' must be"):
        look_over(data, 0)
    data = run_spec(write_parquet(tmp_path / "a.parquet", rows(3)), data=SMALL).data
    with pytest.raises(ConfigurationError, match=r"none .*data\.probe \(\d+\)"):
        look_over(data, 0)
    long = [*rows(LOOKED_OVER + 1), {"prompt": " ", "answer": "1"}]
    data = run_spec(write_parquet(tmp_path / "b.parquet", long, group=5000), data=SMALL).data
    look_over(data, 0)
    with pytest.raises(DataError, match=rf"b\.parquet:{LOOKED_OVER + 2}: "):
        collect_prompts(data, 0)


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train.jsonl", "train"),
        ("test/00/x.jsonl", "test"),
        ("train/test.csv", "test"),
        ("train_prefs-00000-of-00002.parquet", "train_prefs"),
        ("Validation/a.parquet", "validation"),
        ("trained/contest.jsonl", None),
    ],
)
def test_the_nearest_name_says_the_split(path: str, split: str | None) -> None:
    assert split_of(Path(path)) == split


def test_files_with_rows_are_found_at_any_depth(tmp_path: Path) -> None:
    for name in ("a.JSONL", "b/c.csv.gz", "b/.d.jsonl", "_e/f.jsonl", "g.parquet.gz", "dataset_info.json", "h.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {path.relative_to(tmp_path).as_posix() for path in data_files_below(tmp_path)}
    assert found == {"a.JSONL", "b/c.csv.gz"}
