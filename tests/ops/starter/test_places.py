"""Which files a folder stands for: those that a run finds, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.starter.looks import look_at_data
from ops.starter.places import place_of
from tests.ops.starter.sample_files import made, question, write_jsonl
from yatt_core.errors import ConfigurationError


def row(number: int) -> dict[str, str]:
    return {"prompt": question(number), "answer": str(number)}


def written(folder: Path, *names: str) -> Path:
    """Writes files with two rows each."""
    for place, name in enumerate(names):
        write_jsonl(folder / name, made(row, 2, 10 * place))
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("train/00/x.jsonl", "test/00/x.jsonl"),
        ("data/Train.JSONL", "data/TEST.JSONL"),
        ("train.jsonl.GZ", "test.jsonl.GZ"),
        ("en_train/x.jsonl", "en_test/y.jsonl"),
        ("train.ndjson", "test.ndjson"),
        ("train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl"),
    ],
)
def test_splits_are_those_of_a_run(tmp_path: Path, names: tuple[str, ...]) -> None:
    if "GZ" in names[0]:
        plain = written(tmp_path / "plain", "train.jsonl.gz", "test.jsonl.gz")
        (tmp_path / "data").mkdir()
        for name in names:
            (plain / name.lower()).rename(tmp_path / "data" / name)
    else:
        written(tmp_path / "data", *names)
    look = look_at_data(tmp_path / "data")
    assert dict(look.place.keys) == {"split": "train"}
    assert [name for _, name in look.place.held_out] == ["split 'test'"]
    assert [row["answer"] for row in look.rows] == ["0", "1"]


def test_a_folder_with_data_for_each_configuration_is_one_of_them(tmp_path: Path) -> None:
    folder = written(tmp_path, "en/train/x.jsonl", "en/test/x.jsonl", "de/train.jsonl")
    with pytest.raises(ConfigurationError, match="choose one with --subset: de, en"):
        place_of(folder)
    assert [row["answer"] for row in look_at_data(folder, subset="de").rows] == ["20", "21"]
    assert [name for _, name in place_of(folder, subset="en").held_out] == ["split 'test'"]


def test_files_that_belong_to_no_split_are_named(tmp_path: Path) -> None:
    place = look_at_data(written(tmp_path, "train.jsonl", "more.jsonl")).place
    assert place.says == ("not used: more.jsonl, which no split has in its name",)


def test_without_any_name_of_a_split_all_files_are_for_training(tmp_path: Path) -> None:
    look = look_at_data(written(tmp_path, "a.jsonl", "b.jsonl"))
    assert [row["answer"] for row in look.rows] == ["0", "1", "10", "11"]


def test_a_name_of_two_splits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="several splits"):
        place_of(written(tmp_path, "train_and_test.jsonl"))


def test_files_are_known_by_their_suffix_in_any_spelling(tmp_path: Path) -> None:
    written(tmp_path, "a.JSONL")
    assert place_of(tmp_path / "a.JSONL").kind == "jsonl"
    (tmp_path / "a.parquet.gz").touch()
    with pytest.raises(ConfigurationError, match="expected a file of JSON Lines"):
        place_of(tmp_path / "a.parquet.gz")
