#!/usr/bin/env bash
# One folder of Parquet files in which the column `reward` is int64 in the first file and float64 in the next (as when the first
# samples all scored 0 or 1), and in which `late` is only in the later one. DuckDB 2.0.1 reads 0.7 and 0.4 as 1 and 0 and leaves
# `late` out, without a message, for union_by_name=false, its default; union_by_name=true keeps both. pandas 3.1.1 (pyarrow
# 25.0.1) refuses the reward but leaves `late` out without a message; datasets 5.2.0 refuses both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q duckdb==2.0.1 pandas==3.1.1 pyarrow==25.0.1 datasets==5.2.0
cat > "$folder/look.py" <<'PY'
import sys
import tempfile
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import load_dataset

root = Path(sys.argv[1])


def made(name, *files):
    (root / name).mkdir()
    for number, columns in enumerate(files):
        pq.write_table(pa.table(columns), root / name / f"{number}.parquet")
    return str(root / name)


def seen(read, place):
    try:
        return read(place)
    except Exception as error:
        return type(error).__name__


reward = made("reward", {"reward": [1, 0]}, {"reward": [0.7, 0.4]})
late = made("late", {"x": [1]}, {"x": [2], "late": ["kept?"]})


def hugging_face(place):
    rows = load_dataset(place, split="train", cache_dir=tempfile.mkdtemp(dir=root))
    return {name: rows[name][:] for name in rows.column_names}


readers = {
    "duckdb": lambda place: duckdb.sql(f"from '{place}/*.parquet'").fetchall(),
    "duckdb union_by_name": lambda place: duckdb.sql(
        f"from read_parquet('{place}/*.parquet', union_by_name=true)"
    ).fetchall(),
    "pandas": lambda place: pd.read_parquet(place).to_dict("list"),
    "datasets": hugging_face,
}
found = {}
for name, read in readers.items():
    found[name] = (seen(read, reward), seen(read, late))
    print(f"{name}: reward {found[name][0]}, late {found[name][1]}")
expected = {
    "duckdb": ([(1,), (0,), (1,), (0,)], [(1,), (2,)]),
    "duckdb union_by_name": ([(1.0,), (0.0,), (0.7,), (0.4,)], [(1, None), (2, "kept?")]),
    "pandas": ("ArrowInvalid", {"x": [1, 2]}),
    "datasets": ("DatasetGenerationError", "DatasetGenerationError"),
}
sys.exit(0 if found == expected else 1)
PY
HF_HUB_OFFLINE=1 HOME="$folder" "$folder/venv/bin/python" "$folder/look.py" "$folder" 2> "$folder/messages" || { cat "$folder/messages"; exit 1; }
