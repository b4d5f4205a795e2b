"""`yatt audit verify`: a sound run passes, and each kind of tampering is named exactly."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from db.ledger import Ledger
from db.write.aliases import CHAMPION, CheckpointKey
from flows.reports.audit import verify_run
from flows.run.home import Home
from ops.integrations.mlflow_reader import MlflowReader
from tests.inputs.example_specs import write_image_source
from tests.ops.audited import COMMITTED, advance, make_sound_run
from tests.ops.conftest import Yatt
from tests.ops.seeding import toy_spec
from yatt_core.digests import file_sha256
from yatt_core.spec import parse_spec

RUN = "toy-1"
Tamper = Callable[[Home], None]


@pytest.fixture
def sound(sound_run: Path, home: Home) -> Home:
    """Creates a sound run whose two checkpoints were promoted one after the other."""
    shutil.copytree(sound_run, home.folder)
    with Ledger.open(home.ledger) as ledger:
        for iteration in (0, 2):
            ledger.aliases.promote(RUN, CHAMPION, CheckpointKey(0, iteration, 1), "ann", f"{iteration} is good")
    return home


def sql(database: str, statement: str) -> Tamper:
    def tamper(home: Home) -> None:
        with sqlite3.connect(home.folder / database) as connection:
            assert connection.execute(statement).rowcount == 1

    return tamper


def flip(name: str) -> Tamper:
    def tamper(home: Home) -> None:
        path = home.run_folder(RUN) / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return tamper


def remove(name: str) -> Tamper:
    return lambda home: (home.run_folder(RUN) / name).unlink()


def swap_inputs(home: Home) -> None:
    """Changes an input and its manifest consistently."""
    flip("inputs/train.parquet")(home)
    folder = home.run_folder(RUN) / "inputs"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["train.parquet"] = file_sha256(folder / "train.parquet")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_weights_of_a_run_that_nothing_drives_are_refused(sound: Home, yatt: Yatt) -> None:
    answer = yatt("audit", "weights", RUN)
    assert answer.code == 2 and RUN in answer.err and "yatt resume" in answer.err


def test_a_sound_run_passes(sound: Home, yatt: Yatt) -> None:
    answer = yatt("audit", "verify", RUN, "-o", "json")
    assert answer.code == 0, answer.err
    document = answer.document
    assert document["sound"] and document["disagreement"] is None
    assert document["pending"] == [{"branch": 0, "iteration": 3}]
    with Ledger.open(sound.ledger) as ledger:
        events = ledger.events.head(RUN).seq
    assert document["checked"] == {
        "events": events,
        "spec": 1,
        "inputs": 3,
        "commits": 4,
        "experience": 3,
        "checkpoints": 2,
        "aliases": 3,
        "metrics": 2,
    }
    text = yatt("audit", "verify", "latest").out
    assert "toy-1 is sound" in text
    assert "MLflow: 1 iteration," in text and "iteration 3 of branch 0" in text


@pytest.mark.parametrize("before", ["spec", "commits", "checkpoints", "metrics"])
def test_a_sound_run_passes_while_it_is_driven(sound: Home, before: str) -> None:
    """Between two checks, after the tracker's points were read, an iteration, a checkpoint and a promotion are made."""
    reader = MlflowReader(sound.tracking_uri, sound.artifacts)
    with Ledger.open(sound.ledger) as ledger:
        driven: list[str] = []

        def drive(name: str, *_: int) -> None:
            if name == before and not driven:
                driven.append(name)
                advance(sound, ledger, RUN, COMMITTED + 1)
                ledger.aliases.promote(RUN, CHAMPION, CheckpointKey(0, 0, 1), "ann", "0 is good")

        report = verify_run(ledger, RUN, sound.run_folder(RUN), reader, drive)
        assert driven and report.disagreement is None
        assert verify_run(ledger, RUN, sound.run_folder(RUN), reader).disagreement is None


SHARD = "experience/b000/i000002/w00-s0001.t0001"
CHECKPOINT = "checkpoints/b000-i000002.t0001"
TAMPERED: dict[str, tuple[Tamper, str, str]] = {
    "alias": (sql("ledger.db", "UPDATE alias_move SET iteration = 0 WHERE number = 3"), "aliases", "number 3"),
    "alias for another reason": (
        sql("ledger.db", "UPDATE alias_move SET why = 'no' WHERE number = 1"),
        "aliases",
        "number 1",
    ),
    "alias deleted": (sql("ledger.db", "DELETE FROM alias_move WHERE number = 2"), "aliases", "number 2"),
    "event body": (sql("ledger.db", "UPDATE event SET body = '{}' WHERE seq = 4"), "events", "seq 4"),
    "event deleted": (sql("ledger.db", "DELETE FROM event WHERE seq = 6"), "events", "seq 6"),
    "spec": (sql("ledger.db", "UPDATE spec_revision SET spec = json_set(spec, '$.seed', 9)"), "spec", "revision 1"),
    "spec digest": (sql("ledger.db", "UPDATE spec_revision SET digest = 'x'"), "spec", "revision 1"),
    "inputs": (flip("inputs/train.parquet"), "inputs", "train.parquet"),
    "other inputs": (swap_inputs, "inputs", "inputs/manifest.json"),
    "inputs gone": (remove("inputs/probe.parquet"), "inputs", "probe.parquet"),
    "inputs manifest": (flip("inputs/manifest.json"), "inputs", "inputs/manifest.json"),
    "iteration": (
        sql("ledger.db", "UPDATE iteration SET weights_digest = 'x' WHERE iteration = 2"),
        "commits",
        "iteration 2) of table iteration, column weights_digest",
    ),
    "control state": (
        sql("ledger.db", "UPDATE control_state SET state = json_set(state, '$.cursor', 9) WHERE iteration = 1"),
        "commits",
        "iteration 1) of table control_state",
    ),
    "shard row": (
        sql("ledger.db", "UPDATE shard SET group_digests = x'00' WHERE iteration = 1 AND shard = 0"),
        "experience",
        "iteration 1) of table shard",
    ),
    "shard file": (flip(f"{SHARD}/samples.parquet"), "experience", f"{SHARD}/samples.parquet"),
    "shard manifest": (flip(f"{SHARD}/manifest.json"), "experience", f"{SHARD}/manifest.json"),
    "shard gone": (remove(f"{SHARD}/samples.parquet"), "experience", f"{SHARD}/samples.parquet"),
    "checkpoint file": (flip(f"{CHECKPOINT}/weights.safetensors"), "checkpoints", f"{CHECKPOINT}/weights.safetensors"),
    "checkpoint row": (
        sql("ledger.db", "UPDATE checkpoint SET weights_digest = 'x' WHERE iteration = 2"),
        "checkpoints",
        "iteration 2, term 1) of table checkpoint",
    ),
    "point changed": (
        sql("mlflow.db", "UPDATE metrics SET value = 7 WHERE key = 'reward/mean' AND step = 1"),
        "metrics",
        "metric 'reward/mean'",
    ),
    "point lost": (
        sql("mlflow.db", "DELETE FROM metrics WHERE key = 'entropy' AND step = 2"),
        "metrics",
        "metric 'entropy'",
    ),
    "point doubled": (
        sql(
            "mlflow.db",
            "INSERT INTO metrics SELECT key, value, timestamp + 1, run_uuid, step, is_nan FROM metrics "
            "WHERE key = 'entropy' AND step = 2",
        ),
        "metrics",
        "metric 'entropy'",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_each_kind_of_tampering_is_named(sound: Home, yatt: Yatt, name: str) -> None:
    tamper, check, place = TAMPERED[name]
    tamper(sound)
    answer = yatt("audit", "verify", RUN, "-o", "json")
    assert answer.code == 1, answer.err
    found = answer.document["disagreement"]
    assert (found["check"], place in found["place"]) == (check, True), found
    assert found["expected"] != found["found"]
    assert answer.document["sound"] is False


def test_a_damaged_or_missing_image_is_named(home: Home, yatt: Yatt, tmp_path: Path) -> None:
    source = write_image_source(tmp_path / "images", 60)
    spec = toy_spec()
    data = {**spec.data.model_dump(mode="json"), "sources": [source]}
    make_sound_run(home, parse_spec({**spec.model_dump(mode="json"), "data": data}, "toy"))
    assert yatt("audit", "verify", RUN, "-o", "json").document["checked"]["inputs"] == 3 + 60
    path = sorted((home.run_folder(RUN) / "inputs" / "media").rglob("*/*"))[7]
    kept = path.read_bytes()
    for damage in (lambda: path.write_bytes(kept[:-1] + b"?"), path.unlink):
        damage()
        answer = yatt("audit", "verify", RUN, "-o", "json")
        found = answer.document["disagreement"]
        assert (answer.code, found["check"]) == (1, "inputs")
        assert "inputs/media" in found["place"], found
        assert path.exists() == (path.name in found["place"])


def test_the_text_output_names_the_damage_and_its_place(sound: Home, yatt: Yatt) -> None:
    flip("inputs/train.parquet")(sound)
    answer = yatt("audit", "verify", RUN)
    assert answer.code == 1
    assert "toy-1 is not sound: inputs" in answer.out
    assert "train.parquet" in answer.out


def test_the_help_has_examples(yatt: Yatt) -> None:
    assert "yatt audit verify quickstart-1 -o json" in yatt("audit", "verify", "--help").out
