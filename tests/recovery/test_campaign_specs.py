"""The campaigns run with the defaults of recovery: none of their faults is survived because a budget was raised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.outside.__main__ import SPEC as OUTSIDE
from tests.hosts.campaign.__main__ import SPEC as HOSTS
from tests.recovery.chaos import AHEAD
from tests.recovery.chaos import SPEC as CHAOS
from tests.recovery.strikes import PLAN, ahead
from tests.recovery.test_sweep import TORCH_BFLOAT16
from tests.services import ROOT
from yatt_core.spec import load_spec
from yatt_core.spec.reading.documents import parse_yaml
from yatt_core.spec.sections.recovery import RecoverySpec

PARTS = ("tests/recovery", "tests/hosts/campaign", "benchmarks/outside")
LENIENCE = re.compile(r"\bbudgets\b|\bquarantine_\w+|\"recovery\":|\brecovery\.(?!lease_seconds)\w+=")
"""What a program would say that changes the key of a spec, other than the time of the lease."""


@pytest.mark.parametrize("path", [CHAOS, AHEAD, HOSTS, OUTSIDE], ids=lambda path: path.stem)
def test_a_campaign_sets_no_key_of_recovery(path: Path) -> None:
    assert "recovery" not in parse_yaml(path.read_text(), path.name)
    assert load_spec(path, ()).recovery == RecoverySpec(), "neither does a spec that it extends"


def test_of_the_campaigns_and_the_sweep_the_sweep_alone_sets_budgets() -> None:
    sources = [file for part in PARTS for file in (ROOT / part).rglob("*.py") if file != Path(__file__)]
    setting = {str(file.relative_to(ROOT)) for file in sources if LENIENCE.search(file.read_text())}
    assert setting == {"tests/recovery/test_sweep.py"}


@pytest.mark.parametrize("path", [CHAOS, AHEAD], ids=lambda path: path.stem)
def test_chaos_in_bfloat16_is_to_be_exact_like_in_float32(path: Path) -> None:
    """As `make chaos ARGS="--set ..."` has it; its digests are compared only because a resumed run repeats its bits."""
    spec = load_spec(path, TORCH_BFLOAT16)
    assert [getattr(engine, "dtype", None) for engine in (spec.rollout.engine, spec.trainer.engine)] == ["bfloat16"] * 2
    assert spec.is_exact and not spec.exact_obstacles() and not spec.obstacles_on_processors()


def test_the_campaign_ahead_has_a_lag_and_slices() -> None:
    spec = load_spec(AHEAD, ())
    assert spec.asynchrony.lag == 1 and spec.rollout.slice_tokens and spec.is_exact
    strikes = {phase for phases in ahead(PLAN).values() for phase in phases}
    assert "collect_ahead" in strikes and "collect" not in strikes, "its engines collect beside the trainer"
