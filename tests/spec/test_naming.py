"""What a spec names is marked in its schema: whoever may not name code, files, addresses or secrets is told so by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.spec.trees import spec
from yatt_core.naming import MARK, Named, named_in
from yatt_core.spec import override_spec
from yatt_core.spec.schema import json_schema
from yatt_core.spec.sections.placement import PlacementSpec
from yatt_core.spec.sections.workload import WorkloadSpec, WorkloadStart

NAMES_NOTHING = {
    "RunSpec": {"name", "extends"},
    "BillingSpec": {"project", "owner"},
    "BudgetGuard": {"cost", "carbon_kg"},
    "CurriculumSpec": {"field"},
    "CritiqueSpec": {"part"},
    "CustomGuard": {"name", "metric"},
    "DataSpec": {"system_prompt", "chat_template_kwargs"},
    "DeadlineGuard": {"at"},
    "DialogueMarks": {"user", "assistant"},
    "EndpointPart": {"name", "template", "model"},
    "FunctionPart": {"name"},
    "GenerativePart": {"name", "template"},
    "LoraSpec": {"targets"},
    "Marker": {"pattern"},
    "Pattern": {"pattern"},
    "PrivilegedSpec": {"template"},
    "ReasoningGymSource": {"name"},
    "RewardModelObjective": {"template"},
    "RewardModelPart": {"name", "template"},
    "RewardSpec": {"accuracy_part"},
    "RolloutSpec": {"stop"},
    "ScheduledSuite": {"devices"},
    "ThoughtMarks": {"begin", "end"},
    "ToolSpec": {"name", "description", "parameters"},
    "TrackingSpec": {"experiment", "wandb_entity", "tags"},
    "VoteSpec": {"tag", "pattern"},
    "WorkloadSpec": {"models"},
    "YesNo": {"yes", "no"},
    "IterationsGate": {"names"},
    "PromotionGate": {"names"},
    "RollbackGate": {"names"},
    "SpendingGate": {"names"},
}
"""The texts and free values of each section that name nothing outside of the spec: keys, patterns, words, names of its own."""
OF_ROWS = {
    *(
        "prompt_field",
        "prompt_template",
        "system_field",
        "answer_field",
        "chosen_field",
        "rejected_field",
        "label_field",
    ),
    *("image_field", "tools_field", "name", "subset", "split", "held_out_split"),
}
"""The same for sources of rows."""
WITHIN_MARKED = {"SecretReference"}


def free_values(section: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys of a section that take any text or any value."""
    for key, value in section.get("properties", {}).items():
        if any(is_free(each) for each in parts(value)):
            yield key


def parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for each in value.get(key, ()):
                yield from parts(each)
        for key in ("items", "additionalProperties"):
            yield from parts(value.get(key))


def is_free(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    is_text = value.get("type") == "string" and not {"enum", "const"} & value.keys()
    return is_text or value == {} or (value.get("type") == "object" and "properties" not in value)


def test_each_text_of_the_schema_is_marked_or_known_to_name_nothing() -> None:
    schema = json_schema()
    for name, section in [("RunSpec", schema), *schema["$defs"].items()]:
        plain = OF_ROWS if name.endswith("Source") and name not in NAMES_NOTHING else NAMES_NOTHING.get(name, set())
        for key in free_values(section):
            if name in WITHIN_MARKED:
                continue
            assert (MARK in section["properties"][key]) != (key in plain), f"{name}.{key}"


def test_each_reference_to_a_secret_is_marked() -> None:
    schema = json_schema()
    for name, section in [("RunSpec", schema), *schema["$defs"].items()]:
        for key, value in section.get("properties", {}).items():
            if any(
                isinstance(each, dict) and each.get("$ref", "").endswith("SecretReference") for each in parts(value)
            ):
                assert value.get(MARK) == "secret", f"{name}.{key}"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("callbacks=[{function: 'os:getcwd'}]", Named("callbacks.0.function", "code", '"os:getcwd"')),
        ("storage.url='s3://training/yatt'", Named("storage.url", "url", '"s3://training/yatt"')),
        ("tracking.tensorboard_folder=/etc", Named("tracking.tensorboard_folder", "path", '"/etc"')),
        (
            "guards.notify.addresses={env: SECRET}",
            Named("guards.notify.addresses", "secret", '{"env": "SECRET", "file": null, "prefect_block": null}'),
        ),
    ],
)
def test_what_an_override_names_is_found(override: str, named: Named) -> None:
    base = spec()
    found = named_in(override_spec(base, [override], "the spec"))
    assert found - named_in(base) == {named}


def test_a_policy_of_the_user_is_code_and_a_mode_is_not() -> None:
    assert named_in(PlacementSpec(mode="own.module:policy")) == {Named("mode", "code", '"own.module:policy"')}
    assert named_in(PlacementSpec(mode="dynamic")) == frozenset()


def test_a_workload_of_ones_own_is_code_and_a_language_model_is_not() -> None:
    start = WorkloadStart(path="/runs/one/checkpoints/last")
    own = WorkloadSpec(
        kind="mine:Training",
        settings={"rate": 1},
        folder="/data",
        tunable={"clip": 2},
        models={"judge": {"kind": "hub", "repo": "org/judge"}},
        start=start,
    )
    assert named_in(own) == {
        Named("folder", "path", '"/data"'),
        Named("kind", "code", '"mine:Training"'),
        Named("models.judge.repo", "repository", '"org/judge"'),
        Named("settings", "code", '{"rate": 1}'),
        Named("tunable", "code", '{"clip": 2}'),
        Named("start.path", "path", '"/runs/one/checkpoints/last"'),
    }
    assert named_in(WorkloadSpec()) == frozenset()


def test_plain_values_name_nothing() -> None:
    base = spec()
    plain = ["trainer.optimizer.learning_rate=0.001", "seed=7", "placement.mode=colocate", "iterations=9"]
    assert named_in(override_spec(base, plain, "the spec")) == named_in(base)
