"""The shard log after kills, damaged files and newer holders."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from tests.crash import run_until
from tests.experience.scenarios import BATCHES, KEY, SAMPLES, batch_of, make_shard, next_attempt, sealed_folders
from tests.ops.seeding import toy_spec
from tests.storage import kills
from yatt_core import durable
from yatt_core.collection.shard_plan import shard_plan
from yatt_core.errors import DataError, FencedError, InfrastructureError
from yatt_core.experience.shard_log import ShardLog, adopt, damaged_shards, find_sealed, sweep, verify_shard
from yatt_core.experience.table import canonical_table, group_digests, sums_of
from yatt_core.keys import shard_folder
from yatt_core.protocols.receipts import PromptRef, ShardTask

WORK = ["responses-0", "scores-0", "responses-1", "scores-1", "sealed"]


def make(folder: Path, term: int = 1) -> tuple[list[str], Path]:
    """Finishes the shard; returns the work that had to be done, and the shard's folder."""
    told: list[str] = []
    receipt = make_shard(folder, term, told.append)
    assert receipt.group_digests == group_digests(SAMPLES)
    assert dict(receipt.sums) == sums_of(canonical_table(SAMPLES))
    assert receipt.manifest_sha256 == verify_shard(folder, receipt.folder).sha256
    return told, folder / receipt.folder


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_receipt_and_files(tmp_path):
    told: list[str] = []
    receipt = make_shard(tmp_path, 4, told.append)
    assert told == WORK
    assert (receipt.prompts, receipt.samples, receipt.term, receipt.adopted) == (4, 12, 4, False)
    assert receipt.tokens == sums_of(SAMPLES)["response_tokens"]
    assert receipt.folder == str(shard_folder(KEY, 4))
    assert sorted(path.name for path in (tmp_path / receipt.folder).iterdir()) == ["manifest.json", "samples.parquet"]


def test_pandas_and_duckdb_read_the_samples(tmp_path):
    _, folder = make(tmp_path)
    frame = pd.read_parquet(folder / "samples.parquet")
    assert frame["reward"].tolist() == SAMPLES.column("reward").to_pylist()
    assert frame["response_tokens"].iloc[1].tolist() == SAMPLES.column("response_tokens")[1].as_py()
    query = f"select prompt, avg(\"reward/exact\"), count(reward_error) from '{folder}/samples.parquet' group by all order by 1"
    rows = duckdb.sql(query).fetchall()
    assert [row[0] for row in rows] == sorted(set(SAMPLES.column("prompt").to_pylist()))
    assert [row[2] for row in rows] == [0, 1, 0, 0]


def test_killed_after_every_step_acknowledged_work_is_not_repeated(tmp_path):
    for death in kills(lambda folder, tell: make_shard(folder, 1, tell), tmp_path):
        folder = death.folder
        acknowledged = death.acknowledged
        sealed = sealed_folders(folder)
        redone, kept = make(folder, term=2)
        assert not set(redone) & set(acknowledged), death.step
        assert len({*redone, *acknowledged}) >= len(WORK) - 1, "more than one piece was durable but not acknowledged"
        assert redone == [] if sealed else redone
        keep = [str(kept.relative_to(folder))]
        sweep(folder, KEY.branch, KEY.iteration, keep)
        left = sorted(str(path.relative_to(kept.parent)) for path in kept.parent.rglob("*") if path.is_file())
        assert left == [f"{kept.name}/manifest.json", f"{kept.name}/samples.parquet"]
    assert death.step > 20, "fewer steps than chunks and sealing take"


def test_a_series_of_killed_holders_makes_each_piece_once(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    told = []
    killed = True
    attempts = 0
    while killed:
        killed, acknowledged = run_until(next_attempt, folder, step=12)
        told += acknowledged
        attempts += 1
        assert attempts < 20
    assert attempts > 2
    assert told == [work for work in WORK if work in told], "work was repeated or out of order"
    assert make(folder, term=99)[0] == []


def test_a_failed_write_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    log = ShardLog(tmp_path, KEY, 1)
    log.append_responses(0, batch_of(0)[0])
    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(InfrastructureError, match=r"batch-0001\.responses\.arrow: .* No space left"):
            log.append_responses(1, batch_of(1)[0])
    again = ShardLog(tmp_path, KEY, 2)
    assert again.responses(0).equals(batch_of(0)[0])
    assert again.responses(1) is None
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty"])
@pytest.mark.parametrize("kind", ["responses", "scores"])
def test_a_damaged_chunk_is_ignored_and_reported(tmp_path, caplog, kind, damage):
    log = ShardLog(tmp_path, KEY, 1)
    for number in (0, 1):
        log.append_responses(number, batch_of(number)[0])
        log.append_scores(number, batch_of(number)[1])
    path = next(tmp_path.rglob(f"batch-0000.{kind}.arrow"))
    data = path.read_bytes()
    path.write_bytes({"torn": data[: len(data) // 2], "flipped": data, "empty": b""}[damage])
    if damage == "flipped":
        flip(path, len(data) // 2)
    with caplog.at_level(logging.WARNING):
        redone, _ = make(tmp_path, term=2)
    assert redone == [f"{kind}-0", "sealed"]
    assert str(path) in caplog.text


def test_scores_of_other_responses_are_ignored(tmp_path):
    first = ShardLog(tmp_path, KEY, 1)
    first.append_responses(0, batch_of(0)[0])
    first.append_scores(0, batch_of(0)[1])
    flip(next(tmp_path.rglob("*.responses.arrow")), 100)
    second = ShardLog(tmp_path, KEY, 2)
    assert second.responses(0) is None
    second.append_responses(0, batch_of(1)[0])
    assert second.scores(0) is None


def test_scores_need_responses(tmp_path):
    with pytest.raises(DataError, match=r"scores of batch 0\b"):
        ShardLog(tmp_path, KEY, 1).append_scores(0, batch_of(0)[1])


def test_any_arrow_reader_can_open_a_chunk(tmp_path):
    ShardLog(tmp_path, KEY, 1).append_responses(0, batch_of(0)[0])
    table = pa.ipc.open_stream(next(tmp_path.rglob("*.arrow")).read_bytes()).read_all()
    assert table.replace_schema_metadata(None).equals(batch_of(0)[0])


def test_an_older_holder_is_fenced(tmp_path):
    ShardLog(tmp_path, KEY, 5).append_responses(0, batch_of(0)[0])
    with pytest.raises(FencedError, match=r"\bterm 5\b"):
        ShardLog(tmp_path, KEY, 4)


def test_a_writer_believed_lost_disturbs_no_other(tmp_path):
    """The writer's node is unreachable: two writers work on one shard in one term, each in its own folder."""
    lost = ShardLog(tmp_path, KEY, 1)
    lost.append_responses(0, batch_of(0)[0])
    told: list[str] = []
    receipt = make_shard(tmp_path, 1, told.append)
    assert told == WORK[1:], "the lost writer's work is resumed"
    lost.append_scores(0, batch_of(0)[1])
    lost.append_responses(1, batch_of(1)[0])
    assert (receipt.folder, receipt.term) == (str(shard_folder(KEY, 1, writer=1)), 1)
    assert sorted(path.name for path in (tmp_path / receipt.folder).iterdir()) == ["manifest.json", "samples.parquet"]
    assert verify_shard(tmp_path, receipt.folder, receipt.manifest_sha256).files
    assert lost.seal(SAMPLES, {}).folder == receipt.folder, "a sealed shard is not sealed again"
    assert sweep(tmp_path, 0, 3, [receipt.folder]) == [str(shard_folder(KEY, 1))]


def test_concurrent_seals_leave_two_copies_of_the_same_samples(tmp_path):
    first = ShardLog(tmp_path, KEY, 1)
    second = ShardLog(tmp_path, KEY, 1)
    for log in (first, second):
        log.append_responses(0, batch_of(0)[0])
    sealed = first.seal(SAMPLES, {})
    assert sealed.folder == str(shard_folder(KEY, 1))
    (tmp_path / sealed.folder / "manifest.json").rename(tmp_path / "aside")  # not yet visible to the other writer
    other = second.seal(SAMPLES, {})
    (tmp_path / "aside").rename(tmp_path / sealed.folder / "manifest.json")
    assert other.folder == str(shard_folder(KEY, 1, writer=1))
    assert other.group_digests == sealed.group_digests
    assert [folder for _, folder in find_sealed(tmp_path, KEY)] == [other.folder, sealed.folder]


def test_an_adopted_receipt_names_its_origin(tmp_path):
    make(tmp_path, term=2)
    receipt = adopt(tmp_path, KEY)
    assert (receipt.adopted, receipt.term, receipt.samples) == (True, 2, 12)
    assert find_sealed(tmp_path, KEY) == [(2, str(shard_folder(KEY, 2)))]


def test_sealing_twice_in_one_term_keeps_the_first(tmp_path):
    _, folder = make(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    receipt = ShardLog(tmp_path, KEY, 1).seal(SAMPLES, {})
    assert receipt.adopted
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("term", [1, 2])
@pytest.mark.parametrize("name", ["samples.parquet", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_sealed_shard_is_reported_and_made_again(tmp_path, caplog, term, name, damage):
    _, folder = make(tmp_path)
    manifest_sha256 = verify_shard(tmp_path, str(shard_folder(KEY, 1))).sha256
    path = folder / name
    if damage == "flip":
        # In the manifest: a digit of a group digest, which leaves the JSON valid.
        flip(path, path.read_bytes().find(b'"group_digests"') + 30 if name == "manifest.json" else 60)
    elif damage == "truncate":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    with pytest.raises(DataError, match=name):
        verify_shard(tmp_path, str(shard_folder(KEY, 1)), manifest_sha256)
    with caplog.at_level(logging.WARNING):
        assert adopt(tmp_path, KEY) is None
    assert (str(KEY) in caplog.text and name in caplog.text) or (name, damage) == ("manifest.json", "remove")
    redone, _ = make(tmp_path, term)
    assert redone == WORK


def test_the_names_of_a_shard_s_files_are_durable_with_that_of_its_manifest(tmp_path, monkeypatch):
    log = ShardLog(tmp_path, KEY, 1)
    for number in range(BATCHES):
        responses, scores = batch_of(number)
        log.append_responses(number, responses)
        log.append_scores(number, scores)
    synced = []

    def seen(path: Path) -> None:
        synced.append((path, {"samples.parquet", "manifest.json"} <= {each.name for each in path.iterdir()}))
        raise InfrastructureError("the machine crashes before it")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "sync_folder", seen)
        with pytest.raises(InfrastructureError, match="before it"):
            log.seal(SAMPLES, {})
    folder = tmp_path / shard_folder(KEY, 1)
    assert synced == [(folder, True)], "one sync, after the last of them has its name"
    (folder / "samples.parquet").unlink()  # the disk may have kept the manifest's name alone
    assert adopt(tmp_path, KEY) is None
    assert make(tmp_path, term=2)[0] == ["sealed"], "its chunks are still there"


def test_a_manifest_that_contradicts_its_folder_is_not_adopted(tmp_path):
    _, folder = make(tmp_path)
    shutil.copytree(folder, tmp_path / shard_folder(KEY, 7))
    shutil.rmtree(folder)
    assert adopt(tmp_path, KEY) is None


def test_sweep_removes_leftovers_and_keeps_listed_shards(tmp_path):
    make(tmp_path, term=1)
    ShardLog(tmp_path, KEY, 2).append_responses(0, batch_of(0)[0])
    keep = tmp_path / shard_folder(KEY, 1)
    (keep / ".samples.parquet.0123456789abcdef.tmp").write_bytes(b"x")
    (keep.parent / ".w00-s0002.t0000.77.trash").mkdir()
    (keep.parent / "prepared.t0001").mkdir()
    (keep.parent / "telemetry.collect.json").write_text("{}")
    removed = sweep(tmp_path, 0, 3, [str(shard_folder(KEY, 1))])
    assert len(removed) == 2
    assert sorted(path.name for path in keep.parent.iterdir()) == [
        "prepared.t0001",
        "telemetry.collect.json",
        "w00-s0002.t0001",
    ]
    assert verify_shard(tmp_path, str(shard_folder(KEY, 1))).files
    assert sorted(path.name for path in keep.iterdir()) == ["manifest.json", "samples.parquet"]
    assert sweep(tmp_path, 0, 99, []) == []


def test_leftovers_of_another_plan_are_ignored(tmp_path, caplog):
    log = ShardLog(tmp_path, KEY, 1, "plan a")
    log.append_responses(0, batch_of(0)[0])
    log.append_scores(0, batch_of(0)[1])
    assert ShardLog(tmp_path, KEY, 2, "plan b").responses(0) is None
    assert ShardLog(tmp_path, KEY, 2, "plan b").scores(0) is None
    assert ShardLog(tmp_path, KEY, 2, "plan a").scores(0) is not None
    log.seal(SAMPLES, {})
    assert adopt(tmp_path, KEY, "plan b") is None
    assert str(shard_folder(KEY, 1)) in caplog.text and "['plan']" in caplog.text
    assert adopt(tmp_path, KEY, "plan a").term == 1


def test_the_plan_depends_on_what_changes_samples_and_nothing_else():
    task = ShardTask(KEY, 1, (PromptRef(8, 0, 8), PromptRef(9, 0, 9)), 2)
    spec = toy_spec()
    plan = shard_plan(spec, task)
    rollout = spec.rollout
    others = [
        shard_plan(spec, dataclasses.replace(task, weight_version=3)),
        shard_plan(spec, dataclasses.replace(task, prompts=task.prompts[::-1])),
        shard_plan(spec.model_copy(update={"seed": 1}), task),
        *(
            shard_plan(spec.model_copy(update={"rollout": rollout.model_copy(update=change)}), task)
            for change in (
                {"samples_per_prompt": 4},
                {"batch_samples": 32},
                {"temperature": 0.5},
                {"max_new_tokens": 9},
            )
        ),
        shard_plan(spec.model_copy(update={"rewards": spec.rewards.model_copy(update={"correct_at": 0.1})}), task),
    ]
    assert len({plan, *others}) == 1 + len(others)
    engine = rollout.engine.model_copy(update={"instances": 7})
    same = spec.model_copy(update={"rollout": rollout.model_copy(update={"engine": engine}), "iterations": 99})
    assert shard_plan(same, dataclasses.replace(task, term=5)) == plan


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_recorded_shard_is_found_and_made_again_with_the_same_samples(tmp_path, damage):
    @dataclasses.dataclass
    class Row:
        shard: int
        folder: str
        manifest_sha256: str

    told: list[str] = []
    receipt = make_shard(tmp_path, 1, told.append)
    row = Row(KEY.shard, receipt.folder, receipt.manifest_sha256)
    assert damaged_shards(tmp_path, [row]) == []
    path = tmp_path / receipt.folder / "samples.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    if damage == "flip":
        path.write_bytes(data)
        flip(path, len(data) // 2)
    elif damage == "remove":
        path.unlink()
    assert damaged_shards(tmp_path, [row]) == [row]
    again = make_shard(tmp_path, 2, told.append)
    assert (again.term, again.group_digests) == (2, receipt.group_digests)
    assert told == WORK * 2
