"""What a workload knows of its run, what vouches for its code, and the tables that it gives for people."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.phases.recovery import changes
from tests.services import ROOT
from tests.workloads.test_contract import engine_of, learnt, spec_of, task_of
from yatt_core.engines.environment import environment_facts
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.inputs.identity import identity
from yatt_core.inputs.manifest import read_manifest
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import RowsTask
from yatt_core.spec import RunSpec, load_spec, parse_spec
from yatt_core.workloads.contract import RunFacts
from yatt_core.workloads.finding import make_workload, verify_workload
from yatt_core.workloads.inputs import materialise_workload
from yatt_core.workloads.listings import SHOWN, decode_listing

TELLING = "workload.kind=tests.workloads.counting:Telling"
READER = """\
from pathlib import Path
from tests.workloads.counting import Counting
from yatt_core.workloads.contract import RunFacts
class Reader(Counting):
    def __init__(self, facts):
        self.facts = facts
        super().__init__(RunFacts(seed=facts.seed, settings={}, iterations=facts.iterations))
    def build_inputs(self, folder):
        super().build_inputs(folder)
        (folder / "read.txt").write_bytes(self.facts.path_of(self.facts.settings["corpus"]).read_bytes())
"""
SPEC = """\
name: reading
iterations: 2
workload: {kind: custom, file: "reader.py:Reader", settings: {corpus: data.txt}}
trainer: {engine: {kind: torch, ranks: 1}}
checkpoints: {every: 3}
"""


def reading(folder: Path) -> Path:
    folder.mkdir()
    (folder / "reader.py").write_text(READER)
    (folder / "data.txt").write_text("mine")
    (folder / "reading.yaml").write_text(SPEC)
    return folder / "reading.yaml"


def test_relative_paths_in_settings_are_relative_to_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = reading(tmp_path / "specs")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    spec = load_spec(file)
    assert spec.workload.folder == str(tmp_path / "specs")
    materialise_workload(spec, tmp_path / "run")
    assert (tmp_path / "run" / "inputs" / "read.txt").read_text() == "mine"
    (elsewhere / "further.yaml").write_text("extends: ../specs/reading.yaml\niterations: 3\n")
    assert load_spec(elsewhere / "further.yaml").workload.folder == str(tmp_path / "specs")
    (elsewhere / "further.yaml").write_text("extends: ../specs/reading.yaml\nworkload: {settings: {corpus: own.txt}}\n")
    assert load_spec(elsewhere / "further.yaml").workload.folder == str(elsewhere)
    assert load_spec(file, ["workload.folder=below"]).workload.folder == str(elsewhere / "below")
    moved = spec.model_copy(update={"workload": spec.workload.model_copy(update={"folder": "/other"})})
    assert identity(moved) == identity(spec), "inputs that are there do not depend on where they came from"


def test_a_relative_path_without_a_folder_is_refused(tmp_path: Path) -> None:
    tree = load_spec(reading(tmp_path / "specs")).model_dump(mode="json")
    tree["workload"]["folder"] = None
    spec = parse_spec(tree, "the ledger")
    with pytest.raises(
        ConfigurationError, match=r"'data.txt' is relative, and the spec has no folder; expected an absolute"
    ):
        materialise_workload(spec, tmp_path / "run")
    with pytest.raises(ConfigurationError, match="folder: only a workload of your own has folder"):
        load_spec(tmp_path / "specs" / "reading.yaml", ["workload={kind: language, folder: a}"])


def drawing(**workload: Any) -> RunSpec:
    kind = "yatt_core.workloads.diffusion.drawing:ShapeDrawing"
    return parse_spec({"name": "drawing", "seed": 3, "workload": {"kind": kind, **workload}}, "the ledger")


def test_inputs_that_earlier_versions_have_built_are_still_those_of_the_run(tmp_path: Path) -> None:
    """Newer keys of a workload must be left out of the identity at their defaults. Who samples is never part of it."""
    spec = drawing(settings={"group": 8})
    assert identity(spec) == "8d0e6865a9d86fbc71a039a396ce3cfedf22a9540fb8a55e2d0f9f07fb71dd75"
    assert spec.digest == "33de3dc9edaf2814b5742e47fd2887f7aeaed09a28398ee7d7c5d36ecc6823b0"
    (tmp_path / "manifest.json").write_text(json.dumps({"identity": identity(spec)}))
    assert read_manifest(tmp_path, drawing(settings={"group": 8}, models={}, sampled_by="trainer"))
    assert read_manifest(tmp_path, drawing(settings={"group": 8}, sampled_by="rollout"))
    with pytest.raises(ConfigurationError, match="the run's inputs were built for another"):
        read_manifest(tmp_path, drawing(settings={"group": 9}))


def test_it_knows_the_interval_of_checkpoints(tmp_path: Path) -> None:
    made = make_workload(load_spec(reading(tmp_path / "specs")), tmp_path)
    facts: RunFacts = made.facts  # type: ignore[attr-defined]
    assert facts.checkpoint_every == 3


def package(folder: Path, name: str) -> RunSpec:
    """Returns a spec whose class is in a package with a sibling module. name: one that no other test has imported."""
    place = folder / "site" / name
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "rates.py").write_text("RATE = 1\n")
    (place / "trained.py").write_text(
        "from tests.workloads.counting import Counting\nclass Trained(Counting):\n    pass\n"
    )
    return spec_of(f"workload.kind={name}.trained:Trained")


def test_the_digest_covers_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    spec = package(tmp_path, "vouched_training")
    verify_workload(spec)
    sibling = tmp_path / "site" / "vouched_training" / "rates.py"
    sibling.write_text("RATE = 2.5\n")
    with pytest.raises(
        ConfigurationError, match=r"workload.kind: the source of vouched_training.trained:Trained has changed"
    ):
        verify_workload(spec)
    sibling.write_text("RATE = 1\n")
    verify_workload(spec)
    (sibling.parent / "further.py").write_text("")
    with pytest.raises(ConfigurationError, match="has changed"):
        verify_workload(spec)


def test_a_spec_with_the_digest_of_the_file_alone_still_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions wrote it."""
    from yatt_core.digests import file_sha256

    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    spec = package(tmp_path, "formerly_vouched")
    module = tmp_path / "site" / "formerly_vouched" / "trained.py"
    old = spec.model_copy(update={"workload": spec.workload.model_copy(update={"sha256": file_sha256(module)})})
    verify_workload(old)
    module.write_text(f"{module.read_text()}# changed\n")
    with pytest.raises(ConfigurationError, match="has changed"):
        verify_workload(old)


def test_classes_of_yatt_survive_an_update_of_yatt() -> None:
    spec = load_spec(ROOT / "configs" / "shapes.yaml", ["exact=true"])
    assert spec.is_exact and spec.workload.sha256 is None
    older = spec.model_copy(update={"workload": spec.workload.model_copy(update={"sha256": "0" * 64})})
    verify_workload(older)


def test_settings_and_tunable_are_judged_as_a_whole_when_inputs_are_built(tmp_path: Path) -> None:
    small = "{window: 12, pretraining: 11, layers: 1, heads: 1, head_width: 8}"
    spec = load_spec(ROOT / "configs" / "shapes.yaml", [f"workload.settings={small}", "workload.tunable={steps: 20}"])
    materialise_workload(spec, tmp_path)
    assert (tmp_path / "inputs" / "manifest.json").is_file()
    refused = spec_of("workload.kind=tests.workloads.counting:Staged", "workload.tunable={spacing: 2}")
    with pytest.raises(ConfigurationError, match="the inputs depend on spacing; expected it in settings"):
        materialise_workload(refused, tmp_path / "refused")


def test_the_version_of_its_distribution_is_part_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    spec = package(tmp_path, "versioned_training")
    told = tmp_path / "site" / "versioned_training-1.2.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: versioned-training\nVersion: 1.2\n")
    (told / "top_level.txt").write_text("versioned_training\n")
    facts = environment_facts(spec)
    assert facts["workload"] == "versioned-training 1.2"
    before = {**facts, "workload": "versioned-training 1.1"}
    assert changes(before, facts) == {"workload": ("versioned-training 1.1", "versioned-training 1.2")}
    del before["workload"]
    assert changes(before, facts) == {}, "older versions did not record it"
    assert "workload" not in environment_facts(load_spec(reading(tmp_path / "specs")))


def test_tables_and_words_come_beside_metrics_and_columns(tmp_path: Path) -> None:
    engine = learnt(spec_of(TELLING), tmp_path, 1)
    prepared = engine.prepare(task_of("prepare", 2))
    assert prepared is not None and sorted(prepared.files) == ["rank-00.safetensors", SHOWN]
    table = decode_listing((tmp_path / prepared.folder / SHOWN).read_bytes(), "here")
    assert table.columns == ("place", "number") and table.rows[0][0] == "place 0"
    learnt_with = engine.learn(task_of("learn", 2), prepared)
    plain = learnt(spec_of(), tmp_path / "plain", 1)
    without = plain.prepare(task_of("prepare", 2))
    assert without is not None and sorted(without.files) == ["rank-00.safetensors"]
    assert plain.learn(task_of("learn", 2), without).fingerprint == learnt_with.fingerprint, "words change no result"
    found = engine.evaluate(RowsTask(WorkKey("tried", 0, 2, "evaluate"), 1))
    assert found.tables["by_kind"] == {"columns": ["kind", "share"], "data": [["odd", 0.5], ["even", None]]}
    with pytest.raises(DataError, match="here: is no table"):
        decode_listing(b"{}", "here")


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("table name", "tables: table 'Of All': expected a name of lower-case letters"),
        ("table value", "table 'by_k': row 1: has nan; expected a text, a finite number"),
        ("shown rows", "shown: row 0 has 1 values; expected 2"),
    ],
)
def test_a_table_that_cannot_be_shown_is_refused(broken: str, text: str, tmp_path: Path) -> None:
    spec = spec_of(TELLING, f"workload.settings={{broken: {broken}}}")
    materialise_workload(spec, tmp_path)
    engine = engine_of(spec, tmp_path)
    engine.initialise()
    with pytest.raises(ConfigurationError, match=text):
        if broken == "shown rows":
            engine.prepare(task_of("prepare", 1))
        engine.evaluate(RowsTask(WorkKey("tried", 0, 0, "evaluate"), 1))


def test_a_spec_of_a_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = tmp_path / "site" / "packaged_specs" / "specs"
    specs.mkdir(parents=True)
    (specs.parent / "__init__.py").write_text("raise RuntimeError('executed')")
    (specs / "small.yaml").write_text(
        "name: small\nworkload: {kind: 'tests.workloads.counting:Counting', settings: {at: 1}}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    spec = load_spec(Path("packaged_specs:small"), ["iterations=7"])
    assert (spec.name, spec.iterations, spec.workload.folder) == ("small", 7, str(tmp_path))
    (tmp_path / "own.yaml").write_text("extends: packaged_specs:small\nname: own\n")
    assert load_spec(tmp_path / "own.yaml").workload.settings == {"at": 1}
    with pytest.raises(ConfigurationError, match=r"packaged_specs:large: .* has no spec 'large'; it has small"):
        load_spec(Path("packaged_specs:large"))
    with pytest.raises(ConfigurationError, match="neither such a file nor an installed package 'absent_package'"):
        load_spec(Path("absent_package:small"))
    assert "packaged_specs" not in sys.modules
