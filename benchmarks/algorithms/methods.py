"""The methods that `benchmarks.algorithms` compares: each is what it changes in a base run.

The base is `configs/quickstart.yaml` with GRPO and the clipped loss, four optimizer steps an iteration, and one rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from yatt_core.spec.presets import PRESETS

BASE_CHANGES = (
    "trainer.engine.ranks=1",
    "rollout.engine.instances=1",
    "trainer.optimizer.learning_rate=2e-4",
    "trainer.schedule.lr_warmup_iterations=5",
    "tracking.enabled=false",
    "rewards.parts.0.timeout_seconds=600",
)
MATCHED = "group_std"
CORRECTED = "corrected"
UNCORRECTED = "uncorrected"
"""The run whose sampler is the trainer's equal, and those whose sampler is forced away from it."""
MORE_ITERATIONS = 2
"""Factor of the iterations of runs with one optimizer step an iteration."""
LEARNING_RATES = {1: 6e-4, 16: 1e-4}
"""Learning rates of runs with another number of optimizer steps an iteration than the base: Adam's steps do not shrink with
the gradient, so that with the rate of 4 steps, 16 steps go too far on one iteration's experience, and one too little."""
LAG = 4
"""Number of iterations by which the weights of a sampler that is forced away are late."""
SHOWN = "{prompt}\n{answer}\n"
"""The privileged prompt of self-distillation."""
NO_REWARD = "rewards.parts.0.weight=0"

Teaching = Literal["one", "mixed", "cascade", "self"]


@dataclass(frozen=True, slots=True)
class Teachers:
    """Folders of trained models: an early and a late one of a run of the base."""

    early: Path
    late: Path


@dataclass(frozen=True, slots=True)
class Method:
    """A method, as it is compared.

    algorithm: keys of the section that differ from those of the base, or of the preset.
    preset: the preset in place of the base's section; None: none.
    teaching: who teaches; without rewards. None: nobody.
    likeliest: number of the teachers' likeliest tokens that the policy is compared with; None: the sampled token alone.
    lag: number of iterations by which the sampler's weights are late, which computes in bfloat16; None: a sampler that is
        the trainer's equal.
    steps: optimizer steps of an iteration; a run with one has twice as many iterations.
    """

    family: str
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    teaching: Teaching | None = None
    likeliest: int | None = None
    lag: int | None = None
    steps: int = 4

    def section(self, iterations: int, teachers: Teachers | None) -> dict[str, Any]:
        """Returns its keys of `algorithm`. teachers: None if nobody but the policy itself teaches."""
        keys = {**({"preset": self.preset} if self.preset else {"mini_batches": 4}), **self.algorithm}
        if self.teaching == "self":
            keys["distillation"] = {"privileged": {"template": SHOWN}}
        elif self.teaching is not None:
            assert teachers is not None, "the caller has trained them"
            keys["distillation"] = {"teachers": _taught_by(self.teaching, iterations, teachers)}
        if self.likeliest is not None:
            keys["distillation"]["top_k"] = self.likeliest
        return keys

    def changes(self, iterations: int, teachers: Teachers | None) -> list[str]:
        """Returns its overrides of configs/quickstart.yaml, after `BASE_CHANGES`."""
        found = [f"algorithm={json.dumps(self.section(iterations, teachers))}"]
        found.append(f"iterations={(MORE_ITERATIONS if self.steps == 1 else 1) * iterations}")
        if self.steps in LEARNING_RATES:
            found.append(f"trainer.optimizer.learning_rate={LEARNING_RATES[self.steps]}")
        if self.teaching is not None:
            found.append(NO_REWARD)
        if self.teaching == "self":
            found.append("data.max_prompt_tokens=32")
        return found if self.lag is None else [*found, "rollout.engine.dtype=bfloat16", "exact=false"]


def _taught_by(teaching: Teaching, iterations: int, teachers: Teachers) -> list[dict[str, Any]]:
    early, late = ({"model": {"kind": "folder", "path": str(path)}} for path in (teachers.early, teachers.late))
    if teaching == "one":
        return [late]
    if teaching == "mixed":
        return [{**early, "weight": 1.0}, {**late, "weight": 3.0}]
    half = iterations // 2
    return [{**early, "last_iteration": half}, {**late, "first_iteration": half + 1}]


def _of(family: str, key: str, values: Mapping[str, Any]) -> dict[str, Method]:
    return {name: Method(family, {key: value}) for name, value in values.items()}


_CRITIC = {"optimizer": {"learning_rate": 1e-3}}
_SEQUENCE = {"aggregation": "sequence_mean"}

_ADVANTAGES = {
    **_of(
        "advantage",
        "advantage",
        {
            "group_std": {"kind": "group_std"},
            "group_mean": {"kind": "group_mean"},
            "batch_std": {"kind": "batch_std"},
            "leave_one_out": {"kind": "leave_one_out"},
            "max_rl": {"kind": "max_rl"},
            "gdpo": {"kind": "gdpo"},
            "reinforce_plus_plus": {"kind": "reinforce_plus_plus", "baseline": False},
            "reinforce_plus_plus_baseline": {"kind": "reinforce_plus_plus", "baseline": True},
            "group_tokens": {"kind": "group_tokens"},
        },
    ),
    "gae": Method("advantage", {"advantage": {"kind": "gae"}, "critic": _CRITIC}),
}
_LOSSES = {
    **_of(
        "loss",
        "loss",
        {
            "clip_higher": {"kind": "clip", "clip_low": 0.2, "clip_high": 0.28},
            "dual_clip": {"kind": "dual_clip"},
            "cispo": {"kind": "cispo"},
            "dppo_tv": {"kind": "dppo", "divergence": "tv", "delta": 0.15},
            "dppo_kl": {"kind": "dppo", "divergence": "kl", "delta": 0.05},
            "sapo": {"kind": "sapo"},
        },
    ),
    # The published bounds of GSPO are for responses of thousands of tokens; a ratio of five tokens varies far more.
    "gspo": Method("loss", {"loss": {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1}, **_SEQUENCE}),
    "gmpo": Method("loss", {"loss": {"kind": "gmpo"}, **_SEQUENCE}),
}
_CORRECTIONS = {
    **_of(
        "correction",
        "importance_correction",
        {
            "truncate_token": {"kind": "truncate", "by": "token", "cap": 2.0},
            "truncate_sequence": {"kind": "truncate", "by": "sequence", "cap": 2.0},
            "truncate_sequence_mean": {"kind": "truncate", "by": "sequence_mean", "cap": 2.0},
            "mask_token": {"kind": "mask", "by": "token"},
            "mask_sequence": {"kind": "mask", "by": "sequence", "low": 0.0, "high": 3.0},
            "mask_sequence_mean": {"kind": "mask", "by": "sequence_mean"},
        },
    ),
    "off_policy_mask": Method("correction", {"off_policy_mask": {"delta": 0.1}}),
}
# In a group without right answers, division by the group's deviation makes any small term of the reward as large as a right
# answer's advantage, whatever its coefficient. So terms that differ in every response go with an advantage that is not divided.
_UNDIVIDED = {"advantage": {"kind": "group_mean"}}
_KL = {
    **_of(
        "KL",
        "kl",
        {
            **{
                f"kl_loss_{estimator}": {"coefficient": 0.01, "estimator": estimator}
                for estimator in ("k1", "k2", "k3")
            },
            "kl_unbiased": {"coefficient": 0.01, "unbiased": True},
            "kl_adaptive": {"coefficient": 0.01, "adaptive": {"target": 0.1}},
            "kl_moving_reference": {"coefficient": 0.01, "reference_interval": 10},
        },
    ),
    **{
        f"kl_reward_{estimator}": Method(
            "KL", {"kl": {"coefficient": 0.01, "where": "reward", "estimator": estimator}, **_UNDIVIDED}
        )
        for estimator in ("k1", "k2", "k3")
    },
}
_ENTROPY = _of(
    "entropy",
    "entropy",
    {
        "entropy_bonus": {"kind": "bonus", "coefficient": 0.003},
        "entropy_adaptive": {"kind": "adaptive", "target": 0.2, "step": 0.0005},
        "entropy_clip_cov": {"kind": "clip_cov"},
    },
)
_LENGTH = {
    "length_overlong": Method("length", {"length_penalty": {"kind": "overlong", "penalty": 0.2}}),
    "length_linear": Method("length", {"length_penalty": {"kind": "linear", "penalty": 0.02}, **_UNDIVIDED}),
    "mask_truncated": Method("length", {"mask_truncated": True}),
}
_DISTILLATION = {
    "distillation": Method("distillation", teaching="one"),
    "distillation_mixed": Method("distillation", teaching="mixed"),
    "distillation_cascade": Method("distillation", teaching="cascade"),
    "distillation_self": Method("distillation", teaching="self"),
    "distillation_top_k": Method("distillation", teaching="one", likeliest=8),
}
# The critic has to learn in few iterations.
_PRESET_CHANGES: Mapping[str, Mapping[str, Any]] = {"ppo": {"critic": _CRITIC}}
_PRESETS = {
    f"preset_{name}": Method("preset", _PRESET_CHANGES.get(name, {}), preset=name, steps=tree.get("mini_batches", 1))
    for name, tree in PRESETS.items()
}
_FORCED_AWAY = {
    CORRECTED: Method(
        "forced away", {"importance_correction": {"kind": "truncate", "by": "token", "cap": 2.0}}, lag=LAG
    ),
    UNCORRECTED: Method("forced away", lag=LAG),
}

METHODS: Mapping[str, Method] = {
    **_ADVANTAGES,
    **_LOSSES,
    **_CORRECTIONS,
    **_KL,
    **_ENTROPY,
    **_LENGTH,
    **_DISTILLATION,
    **_PRESETS,
    **_FORCED_AWAY,
}
