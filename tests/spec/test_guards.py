"""The spec's guards: on by default, changed key by key, switched off, extended; and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.trees import VIRTUAL, mistakes, refusal, spec, tells, tree, write
from yatt_core.errors import ConfigurationError
from yatt_core.guards.rules import rules_of
from yatt_core.spec import load_spec, override_spec
from yatt_core.spec.sections.metric_names import RESULT_METRICS, TIMING_METRICS, is_timing

FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"
OF_A_CLASS = Path(__file__).parents[2] / "configs" / "shapes.yaml"
BUILT_IN = {
    "kl", "entropy", "train_rollout_logprob_diff", "gradient_norm", "truncation", "throughput", "reward_against_length",
    "non_finite", "unscored", "mostly_unscored", "unread_judgements", "idle_device",
    "staleness", "oldest_tokens", "sample_size", "masked_weights", "capped_weights", "off_policy", "length_bias",
}  # fmt: skip


def test_every_guard_is_on_and_only_one_pauses() -> None:
    guards = spec().guards
    assert {rule.name for rule in rules_of(guards)} == BUILT_IN
    assert {rule.name for rule in rules_of(guards) if rule.action != "alert"} == {"mostly_unscored"}
    assert guards.mostly_unscored is not None and guards.mostly_unscored.action == "pause"
    assert guards.stalled_phase is not None and guards.stalled_phase.action == "alert"
    assert guards.creeping_memory is not None and guards.creeping_memory.action == "alert"
    assert not guards.budget.is_limited and guards.notify is None


def test_a_changed_key_leaves_the_others_of_its_guard() -> None:
    guards = spec(guards__kl__action="pause", guards__entropy__window=3).guards
    assert guards.kl is not None and (guards.kl.action, guards.kl.at_most) == ("pause", 0.5)
    assert guards.entropy is not None and (guards.entropy.window, guards.entropy.fall) == (3, 0.2)


def test_null_switches_a_guard_off_and_custom_adds_one() -> None:
    more = {"name": "short", "metric": "length/response_mean", "at_least": 4}
    guards = spec(guards__truncation=None, guards__custom=[more]).guards
    assert {rule.name for rule in rules_of(guards)} == (BUILT_IN - {"truncation"}) | {"short"}


def test_guards_can_be_revised_on_a_running_line() -> None:
    from flows.branching.spec_changes import keys_read_by_samples, keys_read_by_updates, refuse_fixed

    before = spec(**{"rollout": VIRTUAL["rollout"], "trainer": VIRTUAL["trainer"]})
    after = override_spec(before, ["guards.kl.action=stop", "guards.budget.wall_hours=3"], "test")
    refuse_fixed(before, after)
    assert keys_read_by_updates(before, after) == keys_read_by_samples(before, after) == []


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"guards__entropie": {}}, ('guards.entropie: ', "'entropy'")),
        ({"guards__kl__widow": 3}, ('guards.kl.widow: ', "'window'")),
        ({"guards__kl__at_most": None}, ('guards.kl: ', 'at_most', 'at_least', 'rise', 'fall', 'null')),
        ({"guards__kl__at_least": 0.6}, ('guards.kl: ', 'at_least', '0.6', 'at_most', '0.5')),
        ({"guards__kl__window": 0}, ('guards.kl.window: ', '0')),
        ({"guards__kl__action": "panic"}, ('guards.kl.action: ', "'alert'", "'pause'", "'rollback'", "'stop'")),
        ({"guards__throughput__action": "rollback"}, ('guards.throughput.action: ', "'alert'", "'pause'", "'stop'")),
        ({"guards__idle_device__action": "rollback"}, ('guards.idle_device.action: ', "'alert'", "'pause'", "'stop'")),
        ({"guards__idle_device__at_least": 500}, ('guards.idle_device.at_least: ', '500', '100')),
        ({"guards__creeping_memory__window": 5}, ('guards.creeping_memory.window: ', '5', '10')),
        ({"guards__stalled_phase__fraction": 1.0}, ('guards.stalled_phase.fraction: ', '1')),
        ({"guards__budget__wall_hours": 0}, ('guards.budget.wall_hours: ', '0')),
        ({"guards__deadline__at": "2026-11-27"}, ('guards.deadline.at: ', 'time zone', '2026-11-27T18:00:00+01:00')),
        ({"guards__deadline__at": 20261127}, ('guards.deadline.at: ', 'time zone')),
        ({"guards__deadline__action": "rollback"}, ('guards.deadline.action: ', "'alert'", "'pause'", "'stop'")),
        ({"guards__notify__addresses": "https://hooks.example/secret"}, ('guards.notify.addresses: ', "{env: NAME}")),
        ({"guards__custom": [{"name": "x", "metric": "entropi", "at_most": 1}]},
         ('guards.custom.0.metric: ', "'entropi'", "'entropy'")),
        ({"guards__custom": [{"name": "kl", "metric": "entropy", "at_most": 1}]},
         ('guards.custom.0.name: ', "'kl'")),
        ({"guards__custom": [{"name": "slow", "metric": "seconds/learn", "at_most": 1, "action": "rollback"}]},
         ('guards.custom.0.action: ', 'seconds/learn', 'alert', 'pause', 'stop')),
    ],
)  # fmt: skip
def test_a_refusal_names_its_key(changes: dict[str, object], facts: tuple[str, ...]) -> None:
    (line,) = mistakes(**changes)
    assert tells(line, *facts)


def test_a_guard_may_watch_a_metric_that_only_a_class_knows() -> None:
    def watching(metric: str) -> str:
        return f"guards.custom=[{{name: few, metric: {metric}, at_least: 0.5, action: rollback}}]"

    assert [guard.metric for guard in load_spec(OF_A_CLASS, [watching("recall/at 10")]).guards.custom] == [
        "recall/at 10"
    ]
    with pytest.raises(ConfigurationError, match=r"guards.custom.0.action: seconds/learn depends on timing"):
        load_spec(OF_A_CLASS, [watching("seconds/learn")])


def test_a_mistake_names_its_file(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", tree(guards__custom=[{"name": "x", "metric": "nothing", "at_most": 1}]))
    (line,) = refusal(path)
    assert tells(line, f"{path}: guards.custom.0.metric: ", "'nothing'", "docs/formats.md")


def test_the_known_metrics_are_those_of_the_documentation() -> None:
    """A guard on an unlisted metric would be refused; one on a listed metric that does not exist would never trip."""
    listed: dict[str, set[str]] = {"result": set(), "timing": set()}
    for line in FORMATS.read_text().split("## Metrics")[1].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[2] in listed:
            listed[cells[2]] |= {name.strip().strip("`") for name in cells[1].split(",")}
    families = {
        "curriculum/POOL/share",
        "curriculum/POOL/success",
        "curriculum/POOL/solved",
        "evaluation/pass_at_K",
        "evaluation/majority",
        "evaluation/SOURCE/METRIC",
        "reward/NAME",
        "tools/errors/KIND",
        "unscored/PART/CAUSE",
        "unread_judgements/PART/CAUSE",
        "seconds/PHASE",
        "seconds/hidden",
        "seconds/iteration",
        "seconds/waiting",
    }
    assert listed["result"] - families | {"sampling/invalid_groups", "sampling/cut_groups"} == RESULT_METRICS
    of_machines = {
        name for name in listed["timing"] if name.startswith(("system/", "devices/", "endpoints/", "memory/"))
    }
    assert of_machines and all(is_timing(name) for name in of_machines)
    assert listed["timing"] - families - of_machines == TIMING_METRICS
