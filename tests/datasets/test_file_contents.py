"""Compressed files, values separated by commas or tabs, and files that are not what their name says."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from ops.preflight.run import check_before_start
from tests.datasets.reading import read
from tests.datasets.test_source_files import SMALL, hugging_face, rows, train
from tests.inputs.example_specs import VIRTUAL, run_spec
from yatt_core.datasets.data_files import format_of
from yatt_core.errors import ConfigurationError, DataError

TABLE = rows(50)
TEXT = "".join(json.dumps(row) + "\n" for row in TABLE).encode()
CSV = pd.DataFrame(TABLE).to_csv(index=False).encode()
TSV = pd.DataFrame(TABLE).to_csv(index=False, sep="\t").encode()


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.jsonl.gz", gzip.compress(TEXT), "jsonl"),
        ("a.jsonl.gz", gzip.compress(TEXT[:700]) + gzip.compress(TEXT[700:]), "jsonl"),
        ("a.jsonl.zst", zstd(TEXT), "jsonl"),
        ("a.jsonl.zst", zstd(TEXT[:700]) + zstd(TEXT[700:]), "jsonl"),
        ("a.json.gz", gzip.compress(json.dumps({"data": TABLE}).encode()), "jsonl"),
        ("a.jsonl", gzip.compress(TEXT), "jsonl"),
        ("a.csv", CSV, "csv"),
        ("a.csv", b"\xef\xbb\xbf" + CSV, "csv"),
        ("a.csv.gz", gzip.compress(CSV), "csv"),
        ("a.tsv", TSV, "csv"),
        ("a.TSV", TSV, "csv"),
        ("a.Tsv.GZ", gzip.compress(TSV), "csv"),
        ("a.tsv.zst", zstd(TSV), "csv"),
        ("a.csv", pd.DataFrame(TABLE).to_csv().encode(), "csv"),
    ],
)
def test_every_container_gives_the_same_rows(tmp_path: Path, name: str, data: bytes, kind: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    expected = [{**row} for row in TABLE]
    assert [dict(row.entry) for row in read({"kind": kind, "path": str(path)})] == expected
    held = read({"kind": kind, "path": str(path), "held_out_path": str(path)}, "held_out")
    assert [dict(row.entry) for row in held] == expected
    if name != "a.jsonl":
        assert [row.text for row in read(hugging_face(tmp_path))] == [row["prompt"] for row in TABLE]


def test_names_tell_the_format() -> None:
    assert format_of(Path("a/b.tsv.gz")) == "csv" and format_of(Path("b.JSON.zst")) == "jsonl"
    assert (
        format_of(Path("b.parquet.gz")) is None and format_of(Path("b.gz")) is None and format_of(Path("b.txt")) is None
    )


def test_long_cells_and_texts_over_several_lines_are_read(tmp_path: Path) -> None:
    cell = 'a "quoted" word,\n' * 20_000
    pd.DataFrame({"prompt": [cell, "b"], "answer": ["1", ""]}).to_csv(tmp_path / "a.csv", index=False)
    found = read({"kind": "csv", "path": str(tmp_path / "a.csv")})
    assert [(row.text, row.answer) for row in found] == [(cell, "1"), ("b", None)]


def test_conversations_in_cells_are_json_texts(tmp_path: Path) -> None:
    messages = json.dumps([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    pd.DataFrame({"prompt": [messages]}).to_csv(tmp_path / "a.csv", index=False)
    (row,) = read({"kind": "csv", "path": str(tmp_path / "a.csv")})
    assert [message.role for message in row.messages] == ["system", "user"]


def packed(write: Any) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _zip(buffer: io.BytesIO) -> None:
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.jsonl", TEXT)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"
STRANGE = [
    (POINTER, "a pointer of Git LFS.*git lfs pull"),
    (PAGE, "an HTML page.*download the file itself"),
    (b"<html>\n", "an HTML page"),
    (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML document"),
    (pickle.dumps(TABLE), "a Python pickle, which is not loaded"),
    (pickle.dumps(TABLE, protocol=2), "a Python pickle"),
    (pickle.dumps(TABLE, protocol=0), "a Python pickle"),
    (packed(_zip), "a ZIP archive"),
]


@pytest.mark.parametrize(("data", "says"), STRANGE, ids=itertools.count())
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_is_no_data_is_named(tmp_path: Path, data: bytes, says: str, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.{kind}: is {says}"):
        read({"kind": kind, "path": str(path)})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (packed(lambda to: pq.write_table(pa.Table.from_pylist(TABLE), to)), "a Parquet file; use .*kind parquet"),
        (packed(lambda to: pa.feather.write_feather(pa.Table.from_pylist(TABLE), to)), "an Arrow file"),
        ('{"prompt": "a"}'.encode("utf-16"), "text in UTF-16; save it as UTF-8"),
        ('{"prompt": "a"}'.encode("utf-16-le"), "a binary file, or text that is not UTF-8"),
        (b"BZh91AY&SY", "compressed with bzip2"),
        (b"\xfd7zXZ\0\0\4", "compressed with xz"),
        (gzip.compress(b"a.jsonl".ljust(257, b"\0") + b"ustar"), "a tar archive; unpack it"),
        (gzip.compress(POINTER), "a pointer of Git LFS"),
    ],
    ids=itertools.count(),  # bytes that hold a time would be names that differ between processes
)
def test_other_files_are_named(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.jsonl: is {says}"):
        read({"kind": "jsonl", "path": str(tmp_path / "a.jsonl")})


def test_pointers_in_a_folder_of_a_data_set_are_named(tmp_path: Path) -> None:
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(POINTER)
    with pytest.raises(DataError, match=r"train-00000-of-00001\.parquet: is a pointer of Git LFS"):
        read(hugging_face(tmp_path))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "train.arrow").write_bytes(POINTER)
    with pytest.raises(DataError, match=r"train\.arrow: is a pointer of Git LFS"):
        read(hugging_face(tmp_path / "s"))


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_damaged_files_are_refused(tmp_path: Path, pack: Any) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(pack(TEXT * 100)[:-20])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: cannot be read"):
        read({"kind": "jsonl", "path": str(tmp_path / "a.jsonl.gz")})


@pytest.mark.parametrize("form", ["lines", "list"])
def test_a_text_that_unpacks_a_thousandfold_is_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.json.zst"
    row = b'{"prompt": "a", "note": "%s"}' % (b"x" * 8_000_000)
    path.write_bytes(zstd(b"[" + b",".join([row] * 40) + b"]" if form == "list" else b"\n".join([row] * 40)))
    with pytest.raises(
        DataError, match=r"a\.json\.zst: unpacks from .* to 2\d\d,\d+,\d+ bytes or more; at most 1,000 times"
    ):
        read({"kind": "jsonl", "path": str(path)})


def test_a_header_with_other_marks_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt;answer\na;1\n")
    with pytest.raises(DataError, match=r"a\.csv: the header line is 'prompt;answer'; expected commas .*not ';'"):
        read({"kind": "csv", "path": str(tmp_path / "a.csv")})
    (tmp_path / "a.tsv").write_text("prompt,answer\na,1\n")
    with pytest.raises(DataError, match=r"a\.tsv: .*expected tabs between values, not ','"):
        read({"kind": "csv", "path": str(tmp_path / "a.tsv")})


def test_a_missing_csv_file_is_found_before_a_run(tmp_path: Path) -> None:
    source = {"kind": "csv", "path": str(tmp_path / "a.csv"), "held_out_path": str(tmp_path / "b.csv")}
    with pytest.raises(ConfigurationError, match=r"(?s)data\.sources\.0\.path: .*data\.sources\.0\.held_out_path: "):
        check_before_start(tmp_path / "home", run_spec(source, data=SMALL, **VIRTUAL))


def test_prompts_of_a_csv_file_have_ids_and_parts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    found = train({"kind": "csv", "path": str(tmp_path / "a.csv")})
    assert found[0].prompt_id == "0/train/a.csv:2" and len(found) == 47
