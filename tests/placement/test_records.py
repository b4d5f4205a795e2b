"""The inputs of a placement decision survive their record bit for bit, and policies are found by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.placement.workloads import small
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.placement.policies import registry
from yatt_core.placement.policies.dynamic import Dynamic
from yatt_core.placement.policies.fixed import ColocatePool, SplitPool
from yatt_core.placement.policies.registry import find_policy
from yatt_core.placement.records import setting_from_json, setting_to_json, telemetry_from_json, telemetry_to_json
from yatt_core.placement.simulation.campaign import run_campaign, setting_of
from yatt_core.spec.sections.placement import PlacementSpec


def through_json(value):
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("policy", [ColocatePool(), SplitPool(1), Dynamic(), Dynamic(fit=True)])
def test_a_policy_repeats_its_decision_from_the_recorded_inputs(policy):
    workload = small(judgements=2)
    campaign = run_campaign(workload, policy)
    setting = setting_of(workload)
    read = setting_from_json(through_json(setting_to_json(setting)))
    assert read == setting
    past = [telemetry_from_json(through_json(telemetry_to_json(one))) for one in campaign.past]
    assert past == campaign.past
    plan = policy.plan(read, past[:1], through_json(campaign.plans[0].state))
    recorded = campaign.plans[1]
    assert (plan.roles, plan.state, plan.prediction_s) == (recorded.roles, recorded.state, recorded.prediction_s)


def test_policies_are_found_by_name():
    kinds = {"colocate": ColocatePool, "split": SplitPool, "dynamic": Dynamic}
    for mode, kind in kinds.items():
        assert isinstance(find_policy(PlacementSpec(mode=mode), constants_known=True), kind)


def test_an_unknown_policy_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigurationError, match=r"placement.mode: 'dynamik'.*did you mean dynamic\?") as error:
        find_policy(PlacementSpec(mode="dynamik"), constants_known=True)
    assert "package.module:function" in str(error.value), "which the spec accepts too"


def test_the_policy_in_the_docs_is_found_by_its_entry_point_and_works(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "placement.md").read_text()
    code, points = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL)[1] for kind in ("python", "toml"))
    (tmp_path / "my_policies").mkdir()
    (tmp_path / "my_policies" / "half.py").write_text(code)
    installed = tmp_path / "my_policies-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: my-policies\nVersion: 1\n")
    name, target = re.search(r'(\w+) = "(.*)"', points).groups()
    (installed / "entry_points.txt").write_text(f"[yatt.placement]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    policy = find_policy(PlacementSpec(mode=name), constants_known=True)
    campaign = run_campaign(small(), policy)
    assert campaign.plans[0].roles == "RRJJ"
    assert all(set(plan.roles) == {"R", "J"} for plan in campaign.plans)


def fails(spec: PlacementSpec) -> None:
    raise SystemExit("no licence")


def test_a_custom_policy_is_an_entry_point_that_receives_the_spec(monkeypatch):
    def found(made):
        monkeypatch.setattr(registry, "find_function", lambda name, group, place: made)
        return find_policy(PlacementSpec(mode="mine"), constants_known=True)

    assert isinstance(found(lambda spec: SplitPool(spec.judges or 1)), SplitPool)
    with pytest.raises(ConfigurationError, match=r"placement\.mode: 'mine' .* str\b.* plan$"):
        found(lambda spec: "nothing")
    with pytest.raises(ConfigurationError, match=r"placement\.mode: 'mine' .*SystemExit: no licence"):
        found(fails)


@pytest.mark.parametrize(
    "wrong",
    [
        {"waves": [{"valid": [True], "samples": {"length": [1]}}]},
        {"usage": [{"role": "R"}]},
        {"switches": None},
    ],
    ids=["other samples", "usage of no instance", "no switches"],
)
def test_work_that_another_version_recorded_is_named(wrong):
    campaign = run_campaign(small(), ColocatePool())
    values = through_json(telemetry_to_json(campaign.past[0]))
    with pytest.raises(DataError, match="another may have recorded it"):
        telemetry_from_json(values | wrong)
