"""A tracker stands in one table, and everything that names trackers agrees with it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.disposal.usage import OF_RUNS
from flows.run.home import Home
from ops.bootstrap import DEV_EXTRAS
from ops.integrations.trackers import MAKING, check_trackers, tracker_of
from tests.ops.seeding import toy_spec
from tests.services import ROOT
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.tracking import TrackingSpec
from yatt_core.tracker_kinds import TRACKER_KINDS, TrackerKind

KINDS = sorted(TRACKER_KINDS.values(), key=lambda kind: kind.name)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def tracked(name: str, **keys: object) -> RunSpec:
    tracking = TrackingSpec.model_validate({"trackers": [name], **keys})
    return toy_spec().model_copy(update={"tracking": tracking})


def test_each_kind_is_made() -> None:
    assert set(MAKING) == set(TRACKER_KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_accepted_made_and_installed_by_its_extra(kind: TrackerKind, tmp_path: Path) -> None:
    spec = tracked(kind.name, wandb_mode="offline")
    check_trackers(spec)
    assert kind.name in type(tracker_of(kind.name, Home(tmp_path), spec)).__name__.lower()
    if kind.package is not None:
        assert any(line.startswith(kind.package) for line in EXTRAS[kind.name])
        assert kind.name in DEV_EXTRAS.split(",")
    if kind.folder is not None:
        assert OF_RUNS[kind.folder] == "trackers"


def test_what_is_no_kind_is_refused_with_the_names_of_those_that_are() -> None:
    with pytest.raises(ValidationError, match=r"'mlflow', 'tensorboard' or 'wandb'"):
        TrackingSpec.model_validate({"trackers": ["comet"]})


def test_a_credential_is_checked_before_a_run_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="WANDB_API_KEY"):
        check_trackers(tracked("wandb"))
    check_trackers(tracked("mlflow"))


def test_a_deleted_run_says_what_a_tracker_keeps() -> None:
    assert TRACKER_KINDS["mlflow"].left_elsewhere({}, "a-1") is None
    assert TRACKER_KINDS["wandb"].left_elsewhere({"wandb_mode": "offline"}, "a-1") is None
    assert TRACKER_KINDS["wandb"].left_elsewhere({}, "a-1") == "Weights & Biases run a-1"
    kept = TRACKER_KINDS["tensorboard"].left_elsewhere
    assert kept({}, "a-1") is None
    assert kept({"tensorboard_folder": "/logs"}, "a-1") == "TensorBoard event file /logs/a-1"
