"""Which parts of a spec a resumed run cannot change: models other than the policy, and what does not go together."""

from __future__ import annotations

from typing import Any

import pytest

from flows.branching.spec_changes import keys_read_by_samples, keys_read_by_updates, refuse_combinations, refuse_fixed
from tests.services import ROOT
from tests.spec.trees import spec
from yatt_core.errors import ConfigurationError
from yatt_core.spec import load_spec

COUNTING = ROOT / "tests" / "workloads" / "counting.yaml"
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


CUT = {"factor": 1.5}
WAVES = {"dynamic_sampling": {"kind": "valid_group", "overdispatch": CUT}}
TAIL = {"dynamic_sampling": {"kind": "all", "overdispatch": CUT}}
VLLM = {"rollout": {"engine": {"kind": "vllm", "dtype": "float32"}}}


@pytest.mark.parametrize("before", [WAVES, TAIL | VLLM])
@pytest.mark.parametrize("cut", [None, {"factor": 2.0}])
def test_a_run_that_waits_for_all_it_has_overdrawn_may_draw_less(
    before: dict[str, Any], cut: dict[str, Any] | None
) -> None:
    assert not spec(**before).sliced
    sampling = before["dynamic_sampling"] | {"overdispatch": cut}
    refuse_fixed(spec(**before), spec(**before | {"dynamic_sampling": sampling}))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (WAVES, TAIL, "^--set: dynamic_sampling.overdispatch would let responses go on .* to null as well"),
        (TAIL | VLLM, TAIL, "^--set: dynamic_sampling.overdispatch would let responses go on .* to null as well"),
        ({}, TAIL, "^--set: dynamic_sampling.overdispatch would let responses go on .* to null as well"),
        (TAIL, WAVES, "^--set: responses would no longer go on .* by dynamic_sampling.overdispatch"),
        (TAIL, {"dynamic_sampling": {"overdispatch": {"factor": 2.0}}}, "overdispatch.factor: .* in flight"),
        (TAIL, {}, "overdispatch.*: dynamic_sampling.overdispatch cannot change .* in flight"),
        ({}, {"rollout": {"tail": {}}}, "rollout.tail.*: rollout.tail cannot change .* in flight"),
    ],
)
def test_what_is_in_flight_between_iterations_stays_so(
    before: dict[str, Any], after: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        refuse_fixed(spec(**before), spec(**after))


def test_over_dispatch_may_go_with_what_excludes_it() -> None:
    waits = {"dynamic_sampling": {"kind": "all", "overdispatch": None}}
    refuse_fixed(spec(**WAVES), spec(**waits))


def test_a_lag_may_change_anywhere_but_streamed_learning_only_where_nothing_is_replayed() -> None:
    """Streamed updates sum gradients in another order."""
    plain = spec()
    assert keys_read_by_updates(plain, spec(asynchrony={"lag": 2})) == []
    assert keys_read_by_updates(plain, spec(asynchrony={"streamed": True})) == ["asynchrony.streamed"]


def test_the_number_of_iterations_may_not_change_what_is_replayed() -> None:
    """A workload of one's own is told it, for a schedule of its own; a language model's rate may be constant."""
    plain = spec(iterations=4)
    assert keys_read_by_updates(plain, spec(iterations=6)) == []
    own = load_spec(COUNTING)
    longer = load_spec(COUNTING, ["iterations=60"])
    assert keys_read_by_updates(own, longer) == keys_read_by_samples(own, longer) == ["iterations"]


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ([], ["workload.sampled_by=rollout"], "workload.sampled_by"),
        (["workload.sampled_by=rollout"], ["workload.sampled_by=trainer"], "workload.sampled_by"),
        ([], ["workload.models={judge: {kind: folder, path: /a}}"], "workload.models"),
        (
            ["workload.models={judge: {kind: folder, path: /a}}"],
            ["workload.models={judge: {kind: folder, path: /b}}"],
            "workload.models",
        ),
    ],
)
def test_who_samples_and_models_of_others_stay_as_they_are(before: list[str], after: list[str], key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^--set {key}\S*: {key} cannot change .*`yatt train`"):
        refuse_fixed(load_spec(COUNTING, before), load_spec(COUNTING, after))


PICTURES = {
    "data": {"sources": [{"kind": "jsonl", "path": "p.jsonl", "image_field": "image"}]},
    "model": {"vision": {}},
}
EXACT = {"name": "exact", "function": "exact_match"}
JUDGE = {"name": "judge", "kind": "endpoint", "url": "http://127.0.0.1:9/v1", "model": "m", "template": "{response}?"}


def test_a_change_cannot_bring_together_what_new_runs_cannot_have() -> None:
    """A run of an earlier version that has it already may change everything else."""
    alone = spec(**PICTURES, rewards={"parts": [EXACT]}, exact=False)
    judged = spec(**PICTURES, rewards={"parts": [EXACT, JUDGE]}, exact=False)
    with pytest.raises(ConfigurationError, match=r"^rewards\.parts 'judge': a judge reads texts alone"):
        refuse_combinations(alone, judged)
    refuse_combinations(judged, judged.model_copy(update={"iterations": 7}))
    refuse_combinations(judged, alone)
    stored = spec(trainer={"sync_transport": "store"})
    refuse_combinations(stored, stored.model_copy(update={"iterations": 7}))
    with pytest.raises(ConfigurationError, match=r"^trainer\.sync_transport: .* expected direct"):
        refuse_combinations(spec(), stored)
    with pytest.raises(ConfigurationError, match=r"^trainer\.engine\.kind: 'fsdp2' supports text prompts only"):
        refuse_combinations(judged, spec(**PICTURES, trainer={"engine": {"kind": "fsdp2"}}, exact=False))
