"""A judge's folder among a run's inputs: recorded, checked for changes, and refused before the start if unusable."""

from __future__ import annotations

import shutil

import pytest

from tests.inputs.example_specs import EXACT, SPELL, run_spec
from tests.judges.conftest import judged_spec
from tests.judges.parts import endpoint
from tests.spec.trees import tells
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.judge_models import check_before_start
from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import judge_model_path, read_manifest
from yatt_core.models.model_folder import MARK


@pytest.fixture
def own(judged, tmp_path):
    """Returns a spec, a copy of its judge to damage, and a run folder with its inputs."""
    folder = shutil.copytree(judged[1], tmp_path / "judge")
    run = tmp_path / "r"
    spec = judged_spec(folder)
    materialise(spec, run)
    return spec, folder, run


def test_the_manifest_vouches_for_the_files_of_the_folder(own):
    spec, folder, run = own
    manifest = read_manifest(run / "inputs", spec)
    described = manifest["judges"]["judge"]
    assert described["files"].keys() == {MARK, *(path.name for path in folder.iterdir())}
    assert judge_model_path(manifest, spec.rewards.judges[0]) == described["path"] == str(folder)
    assert not (run / "inputs" / "judges").exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_change_of_the_folder_is_noticed(own, name):
    spec, folder, run = own
    materialise(spec, run)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(ConfigurationError) as caught:
        materialise(spec, run)
    assert tells(str(caught.value), "rewards.parts 'judge': ", str(folder), "has changed", name)


def test_another_judge_is_another_run(own, tmp_path):
    _, folder, run = own
    other = shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"another seed, model, .* or set of sources"):
        materialise(judged_spec(other), run)
    materialise(judged_spec(folder, weight=2.0, judgements=5, temperature=0.5, aggregate="vote"), run)


def test_a_judge_that_could_never_be_asked_is_said_before_the_start(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=r"rewards\.parts 'judge': model\.path: .*none .*folder.*expected"):
        check_before_start(judged_spec(tmp_path / "none"))
    rewards = {"parts": [*EXACT, endpoint("https://a.example/v1", credential={"env": "NO_KEY"}).model_dump()]}
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="NO_KEY is not set"):
        check_before_start(run_spec(SPELL, rewards=rewards, exact=False))


def test_a_folder_that_is_a_judge_passes_and_must_have_room_for_a_question(judged):
    check_before_start(judged[0])
    with pytest.raises(ConfigurationError, match=r"rewards\.parts 'judge': max_new_tokens 128 .*128 positions"):
        check_before_start(judged_spec(judged[1], max_new_tokens=128))
