"""A digest of the parts of a spec on which a run's inputs depend; the rest may change within a run."""

from __future__ import annotations

from typing import Any

from yatt_core.digests import json_digest
from yatt_core.spec.rewards.judges import GenerativePart, JudgePart, RewardModelPart, TrainedJudge
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import ModelFolder


def identity(spec: RunSpec) -> str:
    """Returns the digest of everything in a spec on which its inputs depend."""
    data = spec.data.model_dump(mode="json", include={"sources", "held_out", "probe", "system_prompt"})
    for source in data["sources"]:
        if source.get("image_field", "") is None:
            del source["image_field"]  # left out so that it does not change the digest of a source without images
    model = None if spec.virtual else spec.model.model_dump(mode="json")
    if model is not None and model.get("vision", "") is None:
        del model["vision"]  # left out so that it does not change the digest of a text-only model
    # A tokenizer trained for the run contains the tags of calls and results.
    tools = {} if spec.rollout.tools is None or model is None else {"tools": True}
    judges = {"judges": made} if (made := _judges_identity(spec)) else {}
    given = {"given_models": others} if (others := _given_identity(spec)) else {}
    return json_digest({"seed": spec.seed, "data": data, "model": model, **tools, **judges, **given})


def given_models(spec: RunSpec) -> dict[str, ModelFolder]:
    """Returns the given models (teacher and critic) by their key in the spec."""
    given: dict[str, ModelFolder] = {}
    if spec.algorithm.distillation is not None:
        given["algorithm.distillation.teacher"] = spec.algorithm.distillation.teacher
    if spec.critic is not None and spec.critic.model is not None:
        given["algorithm.critic.model"] = spec.critic.model
    return given


def judge_model_of(part: JudgePart) -> ModelFolder | TrainedJudge | None:
    """Returns the model of a judge if it has weights or will be trained; None if it works for planning only."""
    model = part.model if isinstance(part, GenerativePart | RewardModelPart) else None
    return model if isinstance(model, ModelFolder | TrainedJudge) else None


def _judges_identity(spec: RunSpec) -> dict[str, Any]:
    """Returns the parts of the spec on which the judges' models depend; empty if there are none."""
    made: dict[str, Any] = {}
    for part in spec.rewards.judges:
        model = judge_model_of(part)
        if isinstance(part, GenerativePart) and isinstance(model, TrainedJudge):
            fields = {"model", "template", "parse", "max_new_tokens"}
            made[part.name] = part.model_dump(mode="json", include=fields)
        elif model is not None:
            made[part.name] = model.model_dump(mode="json")
    return made


def _given_identity(spec: RunSpec) -> dict[str, Any]:
    """Returns the parts of the spec that describe the given models; empty if there are none."""
    return {key: model.model_dump(mode="json") for key, model in given_models(spec).items()}
