"""Inputs that a home keeps: copied for a run that would have the same, and for no other; whole or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import BaseModel

from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec, write_image_source, write_jsonl
from yatt_core.input_building import kept_inputs
from yatt_core.input_building.kept_inputs import UNREAD, KeptInputs, inputs_key
from yatt_core.input_building.materialise import materialise
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.algorithm import AlgorithmSpec
from yatt_core.spec.sections.trainer import TrainerSpec

ROWS = [{"prompt": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(400)]


@pytest.fixture
def kept(tmp_path: Path) -> KeptInputs:
    return KeptInputs(tmp_path / "starts" / "inputs")


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return run_spec(write_jsonl(tmp_path / "rows.jsonl", ROWS), **VIRTUAL)


def begin(kept: KeptInputs, spec: RunSpec, folder: Path) -> bool:
    """Prepares a run's inputs as a driver does; returns True if they were built."""
    folder.mkdir()
    key = kept.offer(spec, folder)
    copied = (folder / "inputs").exists()
    materialise(spec, folder)
    if key is not None:
        kept.keep(spec, folder, key)
    return not copied


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_run_has_copies_of_what_the_first_has_built(kept: KeptInputs, tmp_path: Path) -> None:
    spec = run_spec({**SPELL, "size": 300}, data={"held_out": 5, "probe": 4})
    assert begin(kept, spec, tmp_path / "first")
    assert not begin(kept, spec, tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["inputs"]
    assert len(list(kept.folder.iterdir())) == 1
    (tmp_path / "second" / "inputs" / "train.parquet").write_bytes(b"damaged")
    assert not begin(kept, spec, tmp_path / "third"), "each run has files of its own"


def test_inputs_that_exist_stay(kept: KeptInputs, spec: RunSpec, tmp_path: Path) -> None:
    begin(kept, spec, tmp_path / "first")
    (tmp_path / "second" / "inputs").mkdir(parents=True)
    assert kept.offer(spec, tmp_path / "second") is None
    assert list((tmp_path / "second" / "inputs").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "alike"),
    [
        ({"iterations": 7, "name": "other", "exact": False}, True),
        ({"algorithm": {"kl": {"coefficient": 0.1}}}, True),
        ({"seed": 1}, False),
        ({"sft": {"max_steps": 3}}, False),
        ({"rewards": {"parts": [{"name": "exact", "function": "exact_match"}]}}, False),
        ({"rollout": {"max_new_tokens": 7}}, False),
        ({"trainer": {"optimizer": {"learning_rate": 0.5}}}, True),
        ({"trainer": {"engine": {"ranks": 3}}}, False),
    ],
)
def test_specs_whose_inputs_may_differ_have_different_keys(changes: dict[str, Any], alike: bool) -> None:
    assert (inputs_key(run_spec(SPELL, **changes)) == inputs_key(run_spec(SPELL))) is alike


def test_rows_that_change_within_the_same_size_and_time_have_another_key(spec: RunSpec, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    before = rows.stat()
    key = inputs_key(spec)
    text = rows.read_text()
    rows.write_text(text.replace("What is 1 + 1?", "What is 2 + 1?"))
    os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (rows.stat().st_size, rows.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert inputs_key(spec) != key
    rows.write_text(text)
    assert inputs_key(spec) == key


def test_changed_rows_code_and_packages_have_other_keys(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [inputs_key(spec)]
    write_jsonl(tmp_path / "rows.jsonl", [*ROWS, {"prompt": "What is 1 + 1?", "answer": "2"}])
    keys.append(inputs_key(spec))
    monkeypatch.setattr(kept_inputs, "code_revision", lambda: "other")
    keys.append(inputs_key(spec))
    (tmp_path / "installed" / "tokenizers-99.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    keys.append(inputs_key(spec))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_a_model_that_changes_has_another_key(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    spec = run_spec(SPELL, model={"kind": "folder", "path": str(tmp_path / "model")})
    before = inputs_key(spec)
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": 1}')
    assert None not in (before, inputs_key(spec))
    assert inputs_key(spec) != before


def test_a_link_to_another_model_with_equal_small_files_has_another_key(tmp_path: Path) -> None:
    for name in ("step-1", "step-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    latest = tmp_path / "latest"
    keys = set[str | None]()
    for name in ("step-1", "step-2"):
        latest.unlink(missing_ok=True)
        latest.symlink_to(tmp_path / name)
        keys.add(inputs_key(run_spec(SPELL, model={"kind": "folder", "path": str(latest)})))
    assert None not in keys
    assert len(keys) == 2


def test_what_cannot_be_told_is_not_kept(tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    assert inputs_key(run_spec(write_image_source(tmp_path / "images", 3), **VIRTUAL)) is None
    assert inputs_key(run_spec({"kind": "parquet", "path": str(tmp_path / "*.parquet")}, **VIRTUAL)) is None
    assert inputs_key(run_spec({"kind": "function", "function": "os.path:join"}, **VIRTUAL)) is None
    for code in ({"function": "os.path:join"}, {"file": str(tmp_path / "rewards.py:score")}):
        assert inputs_key(run_spec(rows, rewards={"parts": [{"name": "own", **code}]}, **VIRTUAL)) is None
    (tmp_path / "linked").mkdir()
    parquet = {"kind": "parquet", "path": str(tmp_path / "linked")}
    assert inputs_key(run_spec(parquet, **VIRTUAL)) is not None
    (tmp_path / "linked" / "data").symlink_to(tmp_path / "images")
    assert inputs_key(run_spec(parquet, **VIRTUAL)) is None
    with mock.patch.object(kept_inputs, "LARGEST_SOURCES", 100):
        assert inputs_key(run_spec(rows, **VIRTUAL)) is None


def test_a_source_that_cannot_be_read_is_left_to_the_build(kept: KeptInputs, spec: RunSpec, tmp_path: Path) -> None:
    with mock.patch.object(kept_inputs, "path_digest", side_effect=OSError("the disk fails")):
        assert kept.offer(spec, tmp_path) is None


@pytest.mark.parametrize("name", ["manifest.json", "train.parquet", "held_out.parquet"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{}")], ids=["missing", "other"])
def test_a_damaged_copy_is_deleted_and_built_again(
    name: str, damage: Any, kept: KeptInputs, spec: RunSpec, tmp_path: Path
) -> None:
    begin(kept, spec, tmp_path / "first")
    (held,) = kept.folder.iterdir()
    damage(held / name)
    assert begin(kept, spec, tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert not begin(kept, spec, tmp_path / "third"), "the second one is kept instead"


def test_a_file_too_many_is_damage(kept: KeptInputs, spec: RunSpec, tmp_path: Path) -> None:
    begin(kept, spec, tmp_path / "first")
    (held,) = kept.folder.iterdir()
    (held / "tokenizer.json").write_text("{}")
    assert begin(kept, spec, tmp_path / "second")


def test_a_copy_that_fails_leaves_nothing_and_the_inputs_are_built(
    kept: KeptInputs, spec: RunSpec, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    key = kept.offer(spec, first)
    assert key is not None
    materialise(spec, first)
    full = OSError("no space left")
    with mock.patch.object(Path, "rename", side_effect=full):
        kept.keep(spec, first, key)
    assert list(kept.folder.iterdir()) == []
    kept.keep(spec, first, key)
    second = tmp_path / "second"
    second.mkdir()
    with mock.patch.object(kept_inputs, "move_folder", side_effect=full):
        assert kept.offer(spec, second) == key
    assert list(second.iterdir()) == []
    assert kept.offer(spec, second) is None


def test_rows_that_change_during_the_build_are_not_kept(kept: KeptInputs, spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    key = kept.offer(spec, tmp_path / "first")
    assert key is not None
    write_jsonl(tmp_path / "rows.jsonl", ROWS[:300])
    materialise(spec, tmp_path / "first")
    kept.keep(spec, tmp_path / "first", key)
    assert not kept.folder.exists()


def test_of_two_starts_at_once_each_builds_and_one_copy_is_kept(
    kept: KeptInputs, spec: RunSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = {name: tmp_path / name for name in ("first", "second")}
    keys = {name: kept.offer(spec, folder) for name, folder in both.items()}
    for folder in both.values():
        materialise(spec, folder)
    copytree = shutil.copytree

    def overtaken(source: Path, target: Path) -> None:
        copytree(source, target)
        with mock.patch.object(shutil, "copytree", copytree):
            kept.keep(spec, both["second"], keys["second"] or "")

    with mock.patch.object(shutil, "copytree", overtaken):
        kept.keep(spec, both["first"], keys["first"] or "")
    assert not caplog.records
    assert len(list(kept.folder.iterdir())) == 1
    assert not begin(kept, spec, tmp_path / "third")


def test_a_copy_that_is_deleted_meanwhile_is_built(kept: KeptInputs, spec: RunSpec, tmp_path: Path) -> None:
    begin(kept, spec, tmp_path / "first")
    copytree = shutil.copytree

    def gone(source: Path, target: Path) -> None:
        shutil.rmtree(source)
        copytree(source, target)

    second = tmp_path / "second"
    second.mkdir()
    with mock.patch.object(shutil, "copytree", gone):
        assert kept.offer(spec, second) is not None
    assert list(second.iterdir()) == []
    materialise(spec, second)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_a_home_in_which_nothing_can_be_kept(
    kept: KeptInputs, spec: RunSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.folder.parent.write_text("a file where the folder would be")
    for name in ("first", "second"):
        assert begin(kept, spec, tmp_path / name)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    assert [record.message.rpartition(": the inputs are not kept")[1] != "" for record in caplog.records] == [
        True,
        True,
    ]


def test_a_disk_without_much_room_is_left_to_the_run(
    kept: KeptInputs, spec: RunSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch.object(kept_inputs, "FREE_SHARE", 1 << 60):
        begin(kept, spec, tmp_path / "first")
    assert not kept.folder.exists()
    full = shutil.Error([("from", "to", "no space left"), ("other", "to", "no space left, too")])
    with mock.patch.object(shutil, "copytree", side_effect=full):
        begin(kept, spec, tmp_path / "second")
    assert caplog.messages == [f"{kept.folder}: the inputs are not kept: no space left"]


def test_what_was_used_least_recently_is_deleted(
    kept: KeptInputs, spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(kept, spec, tmp_path / "first")
    (first,) = kept.folder.iterdir()
    size = sum(path.stat().st_size for path in first.iterdir())
    monkeypatch.setattr(kept_inputs, "LARGEST_BYTES", 2 * size + 200)
    second = RunSpec.model_validate({**spec.model_dump(mode="json"), "seed": 1})
    begin(kept, second, tmp_path / "second")
    old = min(path.stat().st_mtime for path in kept.folder.iterdir()) - 100
    for path in kept.folder.iterdir():
        os.utime(path, (old, old))
    assert not begin(kept, spec, tmp_path / "used"), "which makes it the newest"
    abandoned = shutil.copytree(first, kept.folder / ".abandoned.tmp")
    os.utime(abandoned, (0, 0))
    shutil.copytree(first, kept.folder / ".in-the-making.tmp")
    begin(kept, RunSpec.model_validate({**spec.model_dump(mode="json"), "seed": 2}), tmp_path / "third")
    left = {path.name for path in kept.folder.iterdir()}
    assert len(left) == 3
    assert {first.name, ".in-the-making.tmp"} < left
    assert begin(kept, second, tmp_path / "again")


@pytest.mark.parametrize(
    "spec",
    [
        run_spec({**SPELL, "size": 300}, data={"held_out": 5, "probe": 4}, sft={"max_steps": 3}),
        run_spec({**SPELL, "size": 300}, data={"over_long": "skip", "max_prompt_tokens": 100}, **VIRTUAL),
    ],
)
def test_building_reads_nothing_that_the_key_leaves_out(
    spec: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = set[str]()
    plain = BaseModel.__getattribute__

    def noting(model: BaseModel, name: str) -> Any:
        if name in type(model).model_fields:
            read.add(f"{type(model).__name__}.{name}")
        return plain(model, name)

    for model in (RunSpec, AlgorithmSpec, TrainerSpec):
        monkeypatch.setattr(model, "__getattribute__", noting, raising=False)
    materialise(spec, tmp_path)
    monkeypatch.undo()
    sections = {name.removeprefix("RunSpec.") for name in read if name.startswith("RunSpec.")}
    assert {"data", "seed"} <= sections
    assert sections & UNREAD <= {"algorithm", "trainer"}
    assert {name for name in read if not name.startswith("RunSpec.")} <= {
        "AlgorithmSpec.critic",
        "AlgorithmSpec.distillation",
        "TrainerSpec.engine",
    }


def test_sections_that_are_not_read_exist() -> None:
    assert RunSpec.model_fields.keys() > UNREAD
