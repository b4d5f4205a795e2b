"""`yatt export --experience`: a folder that pandas, DuckDB and datasets read whole, with every sample of the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from db.core.engine import Fence
from db.ledger import Ledger
from flows.run.home import Home
from ops.terminal.experience import samples_table
from tests.ops.conftest import Yatt
from tests.ops.seeding import commit_of, seal_iteration, seed_run
from yatt_core.experience.table import UNSCORED
from yatt_core.keys import iteration_folder

ITERATIONS = 3
SAMPLES = 8


def one_unscored(table: pa.Table) -> pa.Table:
    """Returns the samples with the column of a run whose rewards may be missing."""
    return table.append_column(UNSCORED, pa.array(["virtual/raised", *[None] * (table.num_rows - 1)], pa.string()))


@pytest.fixture
def run(home: Home) -> str:
    """A run with three iterations, of which the last has a column more."""
    run = seed_run(home, committed=ITERATIONS - 1, ends=False)
    with Ledger.open(home.ledger) as ledger:
        fence = Fence.of_run(run, 1)
        seal_iteration(home, ledger, fence, ITERATIONS, one_unscored)
        ledger.commits.commit(fence, commit_of(ITERATIONS))
    return run


def test_other_programs_read_the_folder_whole(yatt: Yatt, home: Home, run: str, tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    done = yatt("export", run, "--experience", "--to", str(folder), "-o", "json").document
    assert (done["iterations"], done["lacking"], done["samples"]) == ([1, 2, 3], [], ITERATIONS * SAMPLES)
    assert done["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    frame = pd.read_parquet(folder)
    assert len(frame) == ITERATIONS * SAMPLES
    with Ledger.open(home.ledger) as ledger:
        for iteration in range(1, ITERATIONS + 1):
            own = samples_table(ledger, home, run, iteration).to_pylist()
            part = frame[frame["iteration"] == iteration]
            for name in ("prompt", "response", "reward", "correct", "reward/virtual", "tokens", "validity"):
                assert [None if pd.isna(each) else each for each in part[name]] == [row[name] for row in own], name
            assert [list(tokens) for tokens in part["response_tokens"]] == [row["response_tokens"] for row in own]
    assert frame[frame["iteration"] == ITERATIONS][UNSCORED].notna().sum() == 2
    assert not frame[frame["iteration"] < ITERATIONS][UNSCORED].notna().any()
    for name in ("reward", "correct", "reward/virtual"):
        assert (frame[name].isna() == frame[UNSCORED].notna()).all(), name
    counted = duckdb.sql(f"select count(*), count({UNSCORED}), sum(reward) from '{folder}/*.parquet'").fetchall()
    assert counted == [(ITERATIONS * SAMPLES, 2, pytest.approx(frame["reward"].sum()))]
    loaded = load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["response"] == frame["response"].tolist()
    assert loaded["iteration"] == frame["iteration"].tolist()


def test_each_file_says_where_it_is_from(yatt: Yatt, home: Home, run: str, tmp_path: Path) -> None:
    yatt("export", run, "--experience", "--iterations", "2:3", "--to", str(tmp_path / "samples"))
    files = sorted((tmp_path / "samples").iterdir())
    assert [path.name for path in files] == ["i000002.parquet", "i000003.parquet"]
    origin = json.loads(pq.read_schema(files[0]).metadata[b"yatt"])
    with Ledger.open(home.ledger) as ledger:
        shards = ledger.records.shards(run, 0, 2)
    assert origin == {
        "run": run,
        "branch": 0,
        "iteration": 2,
        "shards": {shard.folder: shard.manifest_sha256 for shard in shards},
    }


def test_deleted_files_are_left_out_and_said_so(yatt: Yatt, home: Home, run: str, tmp_path: Path) -> None:
    shutil.rmtree(home.run_folder(run) / iteration_folder(0, 1))
    done = yatt("export", run, "--experience", "--to", str(tmp_path / "samples"))
    assert "16 samples of 2 iterations (2 to 3)" in done.out and "left out: 1 iteration " in done.err
    refused = yatt("export", run, "--experience", "--iterations", "1:2", "--to", str(tmp_path / "other"))
    assert (
        refused.code == 2
        and "the files of iteration 1 are gone" in refused.err
        and "retention.experience" in refused.err
    )
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("other", ".other"))) == []


def test_a_damaged_file_leaves_nothing_behind(yatt: Yatt, home: Home, run: str, tmp_path: Path) -> None:
    (damaged, *_) = sorted((home.run_folder(run) / iteration_folder(0, 2)).glob("w*/samples.parquet"))
    damaged.write_bytes(b"damaged")
    refused = yatt("export", run, "--experience", "--to", str(tmp_path / "samples"))
    assert refused.code == 1 and str(damaged) in refused.err
    assert not (tmp_path / "samples").exists() and not (tmp_path / ".samples.partial").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--experience", "--dtype", "bfloat16"], "leave out"),
        (["--experience", "--iteration", "2"], "leave out"),
        (["--iterations", "1:2"], "with --experience"),
        (["--experience", "--iterations", "2:9"], "expected A:B with 1 <= A <= B <= 3"),
        (["--experience", "--iterations", "two"], "expected A:B, such as 1:3"),
    ],
)
def test_arguments_that_do_not_go_together(yatt: Yatt, run: str, arguments: list[str], expected: str) -> None:
    refused = yatt("export", run, *arguments)
    assert refused.code == 2 and expected in refused.err


def test_a_run_without_experience_is_refused(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, committed=0)
    refused = yatt("export", run, "--experience")
    assert refused.code == 2 and "no committed iteration has experience" in refused.err
