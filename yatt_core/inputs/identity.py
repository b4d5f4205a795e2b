"""A digest of the parts of a spec on which a run's inputs depend; the rest may change within a run."""

from __future__ import annotations

from typing import Any

from yatt_core.digests import json_digest
from yatt_core.spec.rewards.judges import GenerativePart, RewardModelPart
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import GivenFolder

LEFT_OUT = {
    "prompt_template": None,
    "system_field": None,
    "image_field": None,
    "tools_field": None,
    "dialogue": None,
    "rendered": False,
    "subset": None,
    "file": None,
}
"""Keys of a source with the values at which they do not change the digest: they are newer than runs that have one."""

NOT_OF_FILES = {"token"}
"""Keys of a model that say who fetches its files."""


def identity(spec: RunSpec) -> str:
    """Returns the digest of everything in a spec on which its inputs depend."""
    data = spec.data.model_dump(mode="json", include={"sources", "held_out", "probe", "system_prompt"})
    if spec.data.chat_template_kwargs:
        data["chat_template_kwargs"] = spec.data.chat_template_kwargs
    if spec.data.over_long != "refuse":  # left out so that it does not change the digest of other inputs
        data["over_long"] = [spec.data.over_long, spec.data.max_prompt_tokens]
    if spec.data.curriculum is not None and spec.data.curriculum.field is not None:
        data["pools"] = spec.data.curriculum.field
    distillation = spec.algorithm.distillation
    if distillation is not None and distillation.privileged is not None:
        data["privileged"] = distillation.privileged.template
    for source in data["sources"]:
        del source["name"]  # it names metrics only
        source.pop("token", None)  # who fetched the files does not change them
        if spec.samples_responses:  # left out so that they do not change the digest of a source of prompts
            for key in ("chosen_field", "rejected_field", "label_field"):
                source.pop(key, None)
        for key, default in LEFT_OUT.items():
            if key in source and source[key] == default:
                del source[key]
    model = None if spec.virtual else spec.model.model_dump(mode="json", exclude=NOT_OF_FILES)
    if model is not None and model.get("vision", "") is None:
        del model["vision"]  # left out so that it does not change the digest of a text-only model
    # A tokenizer trained for the run contains the tags of calls and results.
    tools = {} if spec.rollout.tools is None or model is None else {"tools": True}
    judges = {"judges": models} if (models := _judges_identity(spec)) else {}
    given = {"given_models": others} if (others := _given_identity(spec)) else {}
    own = {} if spec.has.language_model else {"workload": _own_identity(spec)}
    return json_digest({"seed": spec.seed, "data": data, "model": model, **tools, **judges, **given, **own})


def given_models(spec: RunSpec) -> dict[str, GivenFolder]:
    """Returns the given models (teachers and critic) by their key in the spec."""
    given: dict[str, GivenFolder] = {}
    if spec.algorithm.distillation is not None:
        for number, teacher in enumerate(spec.algorithm.distillation.teachers):
            given[f"algorithm.distillation.teachers.{number}.model"] = teacher.model
    if spec.critic is not None and spec.critic.model is not None:
        given["algorithm.critic.model"] = spec.critic.model
    return given


def judge_models(spec: RunSpec) -> dict[str, GivenFolder]:
    """Returns the judges' model folders by name of the reward part, without models that are for planning only."""
    parts = (part for part in spec.rewards.judges if isinstance(part, GenerativePart | RewardModelPart))
    return {part.name: part.model for part in parts if isinstance(part.model, GivenFolder)}


def _own_identity(spec: RunSpec) -> dict[str, Any]:
    """Returns the parts of the spec that describe the inputs of a workload of one's own.

    `tunable` is none of them, since a class refuses what its inputs depend on there. Nor is who samples.
    """
    names = ("file", "folder", "tunable", "sampled_by")
    left_out: Any = {**dict.fromkeys(names, True), "models": {"__all__": NOT_OF_FILES}}
    described = spec.workload.model_dump(mode="json", exclude=left_out)
    if described["start"] is None:
        del described["start"]  # left out so that it does not change the digest of inputs without one
    return described


def _judges_identity(spec: RunSpec) -> dict[str, Any]:
    """Returns the parts of the spec that describe the judges' models; empty if there are none."""
    return {name: model.model_dump(mode="json", exclude=NOT_OF_FILES) for name, model in judge_models(spec).items()}


def _given_identity(spec: RunSpec) -> dict[str, Any]:
    """Returns the parts of the spec that describe the given models; empty if there are none."""
    return {key: model.model_dump(mode="json", exclude=NOT_OF_FILES) for key, model in given_models(spec).items()}
