"""Which parts of a spec a resumed run cannot change: models other than the policy."""

from __future__ import annotations

from typing import Any

import pytest

from flows.branching.spec_changes import refuse_fixed
from tests.spec.trees import spec
from yatt_core.errors import ConfigurationError

GRPO: dict[str, Any] = {}
PPO: dict[str, Any] = {"advantage": {"kind": "gae"}, "critic": {}}


def taught(path: str, **more: Any) -> dict[str, Any]:
    return {**GRPO, "distillation": {"teachers": [{"model": {"kind": "folder", "path": path}}], **more}}


@pytest.mark.parametrize(
    ("before", "after", "fixed"),
    [
        (GRPO, PPO, "algorithm.critic: .* without "),
        (PPO, GRPO, "algorithm.critic: .* with "),
        (PPO, {**PPO, "critic": {"model": {"kind": "folder", "path": "/a"}}}, "algorithm.critic.model "),
        (taught("/a"), taught("/b"), "algorithm.distillation.teachers "),
        (taught("/a"), GRPO, "algorithm.distillation.teachers "),
        (GRPO, taught("/a"), "algorithm.distillation.teachers "),
    ],
)
def test_a_critic_and_a_teacher_cannot_change(before: dict[str, Any], after: dict[str, Any], fixed: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"--set .*{fixed}.*`yatt train`"):
        refuse_fixed(spec(algorithm=before), spec(algorithm=after))


def test_their_hyperparameters_may_change() -> None:
    refuse_fixed(spec(algorithm=taught("/a")), spec(algorithm=taught("/a", coefficient=0.1)))
    critic = {"optimizer": {"learning_rate": 1e-3}, "clip": None}
    refuse_fixed(
        spec(algorithm=PPO), spec(algorithm={**PPO, "critic": critic, "advantage": {"kind": "gae", "gae_lambda": 1.0}})
    )
