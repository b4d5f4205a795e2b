"""What of a spec a run's inputs depend on, as one digest: the rest may change within a run."""

from __future__ import annotations

from typing import Any

from yatt_core.digests import json_digest
from yatt_core.spec.rewards.judges import GenerativePart, JudgePart, RewardModelPart, TrainedJudge
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import ModelFolder


def identity(spec: RunSpec) -> str:
    """Digest of all in a spec that its inputs depend on; the rest may change within a run."""
    data = spec.data.model_dump(mode="json", include={"sources", "held_out", "probe", "system_prompt"})
    for source in data["sources"]:
        if source.get("image_field", "") is None:
            del source["image_field"]  # younger than the inputs of some runs, and nothing to one without images
    model = None if spec.virtual else spec.model.model_dump(mode="json")
    if model is not None and model.get("vision", "") is None:
        del model["vision"]  # younger than the inputs of some runs, and nothing to a model of text alone
    # A tokenizer of the run's own knows what calls and results are written with.
    tools = {} if spec.rollout.tools is None or model is None else {"tools": True}
    judges = {"judges": made} if (made := _judges_identity(spec)) else {}
    given = {"given_models": others} if (others := _given_identity(spec)) else {}
    return json_digest({"seed": spec.seed, "data": data, "model": model, **tools, **judges, **given})


def given_models(spec: RunSpec) -> dict[str, ModelFolder]:
    """By their key in the spec."""
    given: dict[str, ModelFolder] = {}
    if spec.algorithm.distillation is not None:
        given["algorithm.distillation.teacher"] = spec.algorithm.distillation.teacher
    if spec.critic is not None and spec.critic.model is not None:
        given["algorithm.critic.model"] = spec.critic.model
    return given


def judge_model_of(part: JudgePart) -> ModelFolder | TrainedJudge | None:
    """A judge's model, where it has weights or gets some; a model of sizes alone can only be planned with."""
    model = part.model if isinstance(part, GenerativePart | RewardModelPart) else None
    return model if isinstance(model, ModelFolder | TrainedJudge) else None


def _judges_identity(spec: RunSpec) -> dict[str, Any]:
    """All of the spec that the judges' models depend on; empty without any."""
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
    """What of the spec the run's inputs vouch for; empty without any."""
    return {key: model.model_dump(mode="json") for key, model in given_models(spec).items()}
