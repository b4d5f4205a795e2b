"""Files that unpack to far more than they store are refused at once, by name and bound, and never fill the memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.datasets.test_source_files import hugging_face, train, write_parquet
from yatt_core.datasets.limits import MAX_ROW_BYTES, MAX_ROWS, MAX_VALUES
from yatt_core.errors import DataError

GIANT = 300_000_000


def repeated(path: Path, groups: int, rows: int) -> Path:
    """Writes a Parquet file of a dictionary with one text, repeated in every row."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["What is 1 plus 1?"]))
    table = pa.table({"prompt": column})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(table, row_group_size=rows)
    return path


def write_compressed(folder: Path, table: pa.Table) -> Path:
    """Writes a dataset's folder with a compressed Arrow stream."""
    folder.mkdir()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    file = pa.OSFile(str(folder / "train.arrow"), "wb")
    with file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
        stream.write_table(table)
    return folder


def refused(path: Path, says: str, seconds: float = 2.0) -> None:
    """Asserts that a file is refused in a process that may use little memory, and says so quickly once it has begun."""
    program = (
        "import resource, sys, time\n"
        "from yatt_core.datasets.rows import read_rows\n"
        "from yatt_core.spec.sections.data import HuggingFaceSource, JsonlSource, ParquetSource\n"
        "kind = {'.parquet': ParquetSource, '.jsonl': JsonlSource, '': HuggingFaceSource}\n"
        "source = kind[__import__('pathlib').Path(sys.argv[1]).suffix](path=sys.argv[1])\n"
        "before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()\n"
        "try:\n"
        "    for row in read_rows(source, 'train', lambda data, place: ''): pass\n"
        "except Exception as error:\n"
        "    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "    print(type(error).__name__, used, time.process_time() - began, error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    name, used, took, text = shown.stdout.split(maxsplit=3)
    assert name == "DataError" and says in text, shown.stdout
    assert int(used) < 200_000, "kilobytes"
    assert float(took) < seconds


def test_a_thousand_million_rows_are_refused_from_their_metadata(tmp_path: Path) -> None:
    rows = 100_000_000
    table = pa.table({"prompt": pa.nulls(rows)})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for _ in range(10):
            writer.write_table(table, row_group_size=rows)
    refused(tmp_path / "a.parquet", f"a.parquet: has 1,000,000,000 rows or more; at most {MAX_ROWS:,}")


@pytest.mark.verify
def test_a_text_repeated_a_thousand_million_times_is_refused(tmp_path: Path) -> None:
    refused(repeated(tmp_path / "a.parquet", groups=20, rows=50_000_000), "1,000,000,000 rows")


def test_a_column_that_unpacks_a_thousandfold_is_refused_in_one_group_or_many(tmp_path: Path) -> None:
    refused(repeated(tmp_path / "one.parquet", groups=1, rows=5_000_000), "column 'prompt' unpacks from ")
    refused(repeated(tmp_path / "many.parquet", groups=50, rows=100_000), "column 'prompt' unpacks from ")


def test_a_constant_column_beside_the_prompts_is_data(tmp_path: Path) -> None:
    table = pa.table({"prompt": [f"q{number}" for number in range(1000)], "kind": ["sum"] * 1000})
    assert len(train(write_parquet(tmp_path / "a.parquet", table))) > 900


def test_a_giant_cell_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    table = pa.table({"prompt": [*("q" * number for number in range(1, 9)), "x" * GIANT]})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    refused(tmp_path / "a.parquet", "column 'prompt' unpacks from ")
    refused(write_compressed(tmp_path / "d", table), "train.arrow: a batch unpacks to 300,")


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_row_past_its_bound_is_named(tmp_path: Path, file_format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 95, MAX_ROW_BYTES + 1, np.uint8) + 32
    for name, column, says in (
        (
            "size",
            pa.array(["short", noise.tobytes().decode()]),
            rf":2: the row has 16,\d+,\d+ bytes; at most {MAX_ROW_BYTES:,}",
        ),
        (
            "values",
            pa.array([[], [False] * (MAX_VALUES + 1)]),
            rf":2: the row has \d+,\d+,\d+ values; at most {MAX_VALUES:,}",
        ),
    ):
        table = pa.table({"prompt": ["a", "b"], "note": column})
        if file_format == "parquet":
            source = write_parquet(tmp_path / f"{name}.parquet", table)
        else:
            folder = tmp_path / name
            folder.mkdir()
            with pa.OSFile(str(folder / "train.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
            source = hugging_face(folder)
        with pytest.raises(DataError, match=says):
            train(source)


def test_compressed_streams_within_the_bounds_are_read(tmp_path: Path) -> None:
    table = pa.table(
        {"prompt": [f"q{number}" for number in range(9)], "kind": pa.array(["sum"] * 9).dictionary_encode()}
    )
    assert {prompt.entry["kind"] for prompt in train(hugging_face(write_compressed(tmp_path / "d", table)))} == {"sum"}


def test_a_deeply_nested_column_is_refused(tmp_path: Path) -> None:
    kind = pa.string()
    for _ in range(40):
        kind = pa.list_(kind)
    with pytest.raises(DataError, match="column 'deep' has more than 32 levels"):
        train(write_parquet(tmp_path / "a.parquet", pa.table({"prompt": ["a", "b"], "deep": pa.nulls(2, kind)})))


def test_a_column_nested_a_thousandfold_is_refused(tmp_path: Path) -> None:
    kind = pa.string()
    for _ in range(1000):
        kind = pa.struct([("below", kind)])
    table = pa.table({"prompt": ["a"], "deep": pa.nulls(1, kind)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    refused(tmp_path / "a.parquet", "column 'deep' has more than 32 levels")


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        file.write(json.dumps({"prompt": "a"}) + "\n")
        for _ in range(GIANT // 1_000_000):
            file.write(" " * 1_000_000)
    refused(path, f"a.jsonl:2: the line is longer than {MAX_ROW_BYTES:,}")


def test_ctrl_c_ends_the_reading_at_once(tmp_path: Path) -> None:
    table = pa.table({"prompt": [f"question {number}" for number in range(200_000)]})
    pq.write_table(table, tmp_path / "a.parquet")
    program = (
        "import sys\nfrom yatt_core.datasets.rows import read_rows\n"
        "from yatt_core.spec.sections.data import ParquetSource\n"
        "while True:\n"
        "    for row in read_rows(ParquetSource(path=sys.argv[1]), 'train', lambda data, place: ''):\n"
        "        if row.text == 'question 999': print('reading', flush=True)\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "a.parquet")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reader.stdout is not None and reader.stdout.readline() == b"reading\n"
    reader.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in reader.communicate(timeout=30)[1]
