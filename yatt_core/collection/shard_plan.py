"""A digest of the inputs that determine a shard's samples; leftovers with a different digest are not used.

Consumes the spec and the task; the spec may have been revised since an earlier attempt. The digest covers only
what can change a sample (prompts, weights, seeds, sampling, the shape of decode batches, the rewards), but not
engines, devices or attempts.
"""

from __future__ import annotations

from yatt_core.digests import json_digest
from yatt_core.protocols.receipts import ShardTask, SliceTask
from yatt_core.spec import RunSpec

_SPEED: dict[str, set[str] | bool] = {
    "engine": {"instances", "base_seconds", "seconds_per_sequence", "clock_factor"},
    "tools": {"parallel_calls"},
    "slice_tokens": True,  # tasks say what each response draws
    "max_slices": True,
    "in_flight": True,
    "tail": True,
}


def is_speed(key: str) -> bool:
    """Returns True if a key of the spec says only how fast samples are drawn, or nothing that tasks do not say."""
    section, _, rest = key.partition(".")
    name, _, inner = rest.partition(".")
    speed = _SPEED.get(name, False) if section == "rollout" else False
    return speed if isinstance(speed, bool) else inner in speed


def shard_plan(spec: RunSpec, task: ShardTask) -> str:
    """Returns the sha256 of everything that determines the shard's samples, apart from the run's inputs."""
    recorded = {"sampler_support": "replay"} if spec.replays_support else {}
    slices = {"slices": [_drawn(one) for one in task.slices]} if task.slices else {}
    return json_digest(
        {
            "seed": spec.seed,
            "branch": task.key.branch,
            "iteration": task.key.iteration,
            "weight_version": task.weight_version,
            "prompts": [[prompt.ordinal, prompt.source, prompt.position] for prompt in task.prompts],
            "system_prompt": spec.data.system_prompt,
            "max_prompt_tokens": spec.data.max_prompt_tokens,
            "rollout": spec.rollout.model_dump(mode="json", exclude=_SPEED),
            "rewards": spec.rewards.model_dump(mode="json"),
            **slices,
            **recorded,
        }
    )


def _drawn(one: SliceTask) -> list[object]:
    kept = [] if one.kept is None else [one.kept]
    return [one.started, one.tokens, _place(one), *kept]


def _place(one: SliceTask) -> list[int] | None:
    """Returns where what is drawn so far was sealed, which is the same wherever its copy is."""
    return None if one.place is None else [one.place.iteration, one.place.wave, one.place.shard]
