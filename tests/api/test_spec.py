"""Specs and plans in Python: read, changed and refused as by the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import yatt
from tests.services import ROOT

API: Any = yatt
"""For calls that a type checker would refuse."""
VIRTUAL = ROOT / "configs" / "virtual.yaml"


def test_a_spec_is_read_changed_and_written() -> None:
    spec = yatt.Spec.load(VIRTUAL, {"iterations": 3})
    assert spec.name == "virtual" and spec.model.iterations == 3
    changed = spec.override({"rollout.temperature": 0.5, "data.sources.0.size": 300})
    assert changed.model.rollout.temperature == 0.5 and spec.model.rollout.temperature != 0.5
    assert changed.digest != spec.digest
    assert spec.override(["iterations=4"]).model.iterations == 4
    assert yatt.Spec.from_dict(changed.to_dict()) == changed


def test_a_written_spec_is_read_again(tmp_path: Path) -> None:
    spec = yatt.Spec.load(VIRTUAL)
    (tmp_path / "copy.yaml").write_text(spec.to_yaml())
    assert yatt.Spec.load(tmp_path / "copy.yaml").digest == spec.digest


def test_files_of_a_dictionary_are_relative_to_its_folder_and_vouched_for(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def score(prompt, response):\n    return 1.0\n")
    values = {
        "name": "mine",
        "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}]},
        "rewards": {"parts": [{"name": "own", "file": "rewards.py:score"}]},
    }
    (part,) = yatt.Spec.from_dict(values, tmp_path).model.rewards.functions
    assert part.path == tmp_path / "rewards.py" and part.sha256
    with pytest.raises(yatt.errors.ConfigurationError, match=r"rewards\.py does not exist"):
        yatt.Spec.from_dict(values, tmp_path / "elsewhere")


def test_mistakes_have_the_words_of_the_command_line() -> None:
    with pytest.raises(yatt.errors.ConfigurationError, match="did you mean") as caught:
        yatt.Spec.load(VIRTUAL, {"iteratons": 3})
    assert caught.value.exit_code == yatt.errors.ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: API.Spec.load(None), r"^path: expected the path of a spec file \(given: None, of type NoneType\)"),
        (lambda: API.Spec.load(VIRTUAL, 3), "^overrides: expected values by dotted key"),
        (lambda: API.Spec.load(VIRTUAL, [3]), r"^overrides\.0: expected KEY=VALUE"),
        (lambda: API.Spec.load(VIRTUAL, {"iterations": object()}), "^overrides: iterations: expected a plain value"),
        (lambda: API.Spec.from_dict([1]), "^values: expected a dictionary"),
        (lambda: API.plan(3), "^spec: expected a Spec or the path"),
        (lambda: API.find(3), "^run: expected the id of a run"),
        (lambda: API.fork(3, 1), "^run: expected a run or its id"),
        (lambda: API.train(VIRTUAL, until=-1, home="nowhere"), "^until: expected a whole number of at least 0"),
        (lambda: API.train(VIRTUAL, until="3", home="nowhere"), "^until: expected a whole number of at least 0"),
        (
            lambda: API.train(VIRTUAL, callbacks=[3], home="nowhere"),
            r"^callbacks\.0: expected an object with on_commit",
        ),
        (lambda: API.train(VIRTUAL, callbacks=[yatt.Callback], home="nowhere"), r"^callbacks\.0: expected an object"),
        (lambda: API.resume("toy-1", callbacks=3, home="nowhere"), "^callbacks: expected a list of callbacks"),
    ],
)
def test_wrong_arguments_are_refused_by_name_before_anything_is_written(
    call: Callable[[], object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(yatt.errors.ConfigurationError, match=says):
        call()
    assert not list(tmp_path.iterdir())


def test_a_plan_says_what_fits() -> None:
    spec = yatt.Spec.load(ROOT / "configs" / "plan-7b-grpo.yaml")
    assert yatt.plan(spec, "8xH200", response_tokens="800:0.5").fits
    assert yatt.plan(ROOT / "configs" / "plan-7b-grpo.yaml", "8xH200", response_tokens="800:0.5").fits
    small = yatt.plan(spec.override({"trainer.engine.tensor_model_parallel_size": 1}), "1xH100")
    assert not small.fits and small.times is None
    with pytest.raises(yatt.errors.ConfigurationError):
        yatt.plan(spec, "8xH2000")


def test_an_unknown_name_of_the_api_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Trainer'; its names: .*train"):
        yatt.Trainer  # noqa: B018
    assert set(yatt.__all__) <= set(dir(yatt))
    for name in yatt.__all__:
        assert getattr(yatt, name) is not None
