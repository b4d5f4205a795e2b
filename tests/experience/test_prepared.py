"""Prepared columns and telemetry: written by rank, read in canonical order, verified."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.experience.scenarios import KEY, prepare, prepared_ranks
from tests.storage import kills
from yatt_core import durable
from yatt_core.errors import DataError
from yatt_core.experience.prepared import (
    pack_prepared,
    prepared_folder,
    prepared_is_whole,
    read_prepared,
    receive_prepared,
    sweep_prepared,
    write_prepared,
)
from yatt_core.experience.telemetry import read_telemetry, write_telemetry


def test_ranks_are_read_in_canonical_order(tmp_path):
    folder, files = write_prepared(tmp_path, KEY, 1, prepared_ranks())
    assert folder == prepared_folder(0, 3, 1)
    assert sorted(files) == ["rank-00.parquet", "rank-01.parquet"]
    columns = read_prepared(tmp_path, folder, files)
    assert columns.ordinals.tolist() == [0, 0, 1, 1, 2, 2]
    assert columns.samples.tolist() == [0, 1, 0, 1, 0, 1]
    assert columns.advantages.tolist() == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert np.diff(columns.response_offsets).tolist() == [3, 0, 2, 4, 1, 5]
    expected = [0, 1, 2, 200, 201, 300, 301, 302, 303, 400, 500, 501, 502, 503, 504]
    assert columns.log_probs_old.tolist() == expected
    assert columns.log_probs_ref is None
    assert columns.token_advantages is None


def test_one_advantage_per_sample_is_enough(tmp_path):
    ranks = [dataclasses.replace(columns, log_probs_old=None) for columns in prepared_ranks()]
    columns = read_prepared(tmp_path, *write_prepared(tmp_path, KEY, 1, ranks))
    assert columns.log_probs_old is None
    assert np.diff(columns.response_offsets).tolist() == [3, 0, 2, 4, 1, 5]


def test_token_advantages_are_kept(tmp_path):
    ranks = [dataclasses.replace(c, token_advantages=-c.log_probs_old) for c in prepared_ranks()]
    columns = read_prepared(tmp_path, *write_prepared(tmp_path, KEY, 1, ranks))
    assert np.array_equal(columns.token_advantages, -columns.log_probs_old)


def test_columns_of_another_length_are_refused(tmp_path):
    ranks = [dataclasses.replace(c, log_probs_ref=c.log_probs_old[:-1]) for c in prepared_ranks()]
    with pytest.raises(DataError, match=r"^log_probs_ref "):
        write_prepared(tmp_path, KEY, 1, ranks)


def test_ranks_with_different_columns_are_refused(tmp_path):
    first, second = prepared_ranks()
    written = write_prepared(tmp_path, KEY, 1, [first, dataclasses.replace(second, log_probs_old=None)])
    with pytest.raises(DataError, match="different columns"):
        read_prepared(tmp_path, *written)


def test_a_node_that_lacks_the_columns_receives_a_copy_and_refuses_a_damaged_one(tmp_path):
    folder, files = write_prepared(tmp_path / "here", KEY, 1, prepared_ranks())
    packed = pack_prepared(tmp_path / "here", folder, files)
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(DataError, match="names the files"):
        receive_prepared(there, folder, files, packed | {"rank-01.parquet": b"other"})
    for _ in range(2):
        receive_prepared(there, folder, files, packed)
    here, copy = (read_prepared(place, folder, files) for place in (tmp_path / "here", there))
    np.testing.assert_array_equal(copy.advantages, here.advantages)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("name", ["rank-01.parquet", "manifest.json"])
def test_a_damaged_file_is_reported(tmp_path, name, damage):
    folder, files = write_prepared(tmp_path, KEY, 1, prepared_ranks())
    assert prepared_is_whole(tmp_path, folder, files)
    path = tmp_path / folder / name
    data = bytearray(path.read_bytes())
    data[data.index(b"sha256") + 12 if name == "manifest.json" else 40] ^= 1
    path.write_bytes(data if damage == "flip" else data[:-3])
    if damage == "remove":
        path.unlink()
    with pytest.raises(DataError, match=name):
        read_prepared(tmp_path, folder, files)
    assert not prepared_is_whole(tmp_path, folder, files)


def test_killed_at_every_step_columns_are_complete_or_unpublished(tmp_path):
    for death in kills(prepare, tmp_path):
        folder = death.folder
        acknowledged = death.acknowledged
        published = (folder / prepared_folder(0, 3, 1) / "manifest.json").exists()
        assert published or not acknowledged
        written = write_prepared(folder, KEY, 2, prepared_ranks())
        read_prepared(folder, *written)
        leftovers = sweep_prepared(folder, 0, 3, [written[0]])
        assert leftovers in ([], [prepared_folder(0, 3, 1)])
        assert [path.name for path in (folder / written[0]).parent.iterdir()] == ["prepared.t0002"]
    assert death.step > 9


def test_the_names_of_all_files_are_durable_with_that_of_the_manifest(tmp_path, monkeypatch):
    synced = []

    def seen(path):
        synced.append((path.name, sorted(each.name for each in path.iterdir())))

    monkeypatch.setattr(durable, "sync_folder", seen)
    folder, files = write_prepared(tmp_path, KEY, 1, prepared_ranks())
    name = (tmp_path / folder).name
    assert [each for each in synced if each[0] == name] == [(name, ["manifest.json", *files])]


def test_telemetry_is_stored_with_the_experience(tmp_path):
    assert read_telemetry(tmp_path, 0, 3) == {}
    write_telemetry(tmp_path, 0, 3, "collect", {"seconds": 1.5})
    write_telemetry(tmp_path, 0, 3, "collect", {"seconds": 2.5})
    write_telemetry(tmp_path, 0, 3, "learn.t0001", {"device": "cpu:0"})
    assert read_telemetry(tmp_path, 0, 3) == {"collect": {"seconds": 2.5}, "learn.t0001": {"device": "cpu:0"}}


@pytest.mark.parametrize("left", [b"", b'{"shard-0000": {"gen', b"\0" * 512, b"[1]", b"\xff", b"[" * 100_000])
def test_telemetry_damaged_by_a_crash_is_skipped(tmp_path, caplog, left):
    write_telemetry(tmp_path, 0, 3, "collect", {"seconds": 1.5})
    write_telemetry(tmp_path, 0, 3, "learn", {"device": "cpu:0"})
    (path,) = tmp_path.rglob("telemetry.collect.json")
    path.write_bytes(left)
    assert read_telemetry(tmp_path, 0, 3) == {"learn": {"device": "cpu:0"}}
    assert str(path) in caplog.text


def test_a_failed_write_of_telemetry_is_only_a_warning(tmp_path, caplog):
    (tmp_path / "experience").write_text("a file in the folder's place")
    write_telemetry(tmp_path, 0, 1, "collect", {"seconds": 1.0})
    (record,) = caplog.records
    assert record.levelname == "WARNING" and str(tmp_path / "experience") in record.getMessage()
