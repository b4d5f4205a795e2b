"""Batches, steps and passes: the arithmetic of each peer in prompts and optimizer steps, and what has to be asked."""

from __future__ import annotations

from typing import Any

import pytest

from ops.starter.peers.entries import List
from tests.ops.starter.peers.reading import ROWS, at, keys_in, of_keys, options
from yatt_core.errors import ConfigurationError

ACTOR = "actor_rollout_ref.actor"


def sizes(translation: Any) -> tuple[Any, ...]:
    """Returns prompts of an iteration, responses to each, steps of a pass, and passes; None is YATT's default."""
    paths = ("data.prompts_per_iteration", "rollout.samples_per_prompt", "algorithm.mini_batches", "algorithm.epochs")
    return tuple(at(translation, path) for path in paths)


def test_verl_counts_prompts() -> None:
    keys = {
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 512,
        "actor_rollout_ref.rollout.n": 16,
        f"{ACTOR}.ppo_mini_batch_size": 32,
        f"{ACTOR}.ppo_epochs": 2,
        "trainer.total_epochs": 3,
    }
    translation = of_keys("verl-ppo", keys)
    assert sizes(translation) == (512, 16, 16, 2)
    assert at(translation, "iterations") == 3 * (ROWS // 512)


def test_verl_changes_the_rate_once_in_an_iteration() -> None:
    keys = {f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1, f"{ACTOR}.optim.lr_scheduler_type": "cosine"}
    translation = of_keys("verl-ppo", {**keys, "trainer.total_training_steps": 200})
    assert at(translation, "iterations") == 200
    assert at(translation, "trainer.schedule") == {"kind": "cosine", "lr_warmup_iterations": 20}


@pytest.mark.parametrize(
    ("keys", "processes", "expected"),
    [
        ({}, 4, (4, None, None, None)),  # 8 x 1 x 4 completions in groups of 8
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}, 8, (16, None, None, None)),
        ({"steps_per_generation": 4}, 4, (16, None, 4, None)),
        ({"steps_per_generation": 8, "gradient_accumulation_steps": 2, "num_iterations": 3}, 1, (8, None, 4, 3)),
        ({"generation_batch_size": 64, "num_generations": 4}, 2, (16, 4, 4, None)),
        (
            {"steps_per_generation": 8, "gradient_accumulation_steps": 32, "per_device_train_batch_size": 4},
            1,
            (16, None, None, None),
        ),
    ],
)
def test_trl_counts_completions_of_all_processes(
    keys: dict[str, Any], processes: int, expected: tuple[Any, ...]
) -> None:
    translation = of_keys("trl-grpo", keys, processes=processes)
    plain = tuple(1 if value is None else value for value in expected)
    written = tuple(1 if value is None else value for value in sizes(translation))
    assert (written[0], written[2], written[3]) == (plain[0], plain[2], plain[3])
    assert sizes(translation)[1] == expected[1]


def test_trl_counts_steps_and_yatt_iterations() -> None:
    keys = {"steps_per_generation": 4, "max_steps": 1_000, "warmup_steps": 0.1, "save_steps": 10}
    translation = of_keys("trl-grpo", keys)
    assert at(translation, "iterations") == 250
    assert at(translation, "trainer.schedule.lr_warmup_iterations") == 25
    assert at(translation, "checkpoints.every") == 2
    assert {"warmup_steps"} <= keys_in(translation, List.DIFFERENT)


def test_trl_leaves_out_the_last_smaller_batch_of_a_pass_of_grpo_alone() -> None:
    sampled = of_keys("trl-grpo", {"num_train_epochs": 2}, processes=4)
    assert at(sampled, "iterations") == 2 * (ROWS // 4)
    learnt = of_keys("trl-sft", {"num_train_epochs": 2, "per_device_train_batch_size": 4}, processes=4)
    assert at(learnt, "iterations") == 2 * (ROWS // 16 + 1)


def test_openrlhf_counts_prompts_and_responses() -> None:
    keys = {
        "rollout_batch_size": 128,
        "n_samples_per_prompt": 8,
        "train_batch_size": 256,
        "max_epochs": 2,
        "max_samples": 1_280,
        "num_episodes": 3,
    }
    translation = of_keys("openrlhf-ppo", keys)
    assert sizes(translation) == (128, 8, 4, 2)
    assert at(translation, "iterations") == 30
    assert "max_samples" in keys_in(translation, List.DIFFERENT)


@pytest.mark.parametrize(
    ("program", "keys", "message"),
    [
        ("verl-ppo", {f"{ACTOR}.ppo_mini_batch_size": 300}, "1024 is not a multiple of 300"),
        ("verl-ppo", {"data.train_batch_size": "many"}, "expected a whole number"),
        ("verl-ppo", {"actor_rollout_ref.rollout.tensor_model_parallel_size": 3}, "8 is not a multiple of 3"),
        ("trl-grpo", {"num_generations": 5}, "8 is not a multiple of 5"),
        ("trl-grpo", {"max_steps": 10, "steps_per_generation": 4}, "expected a multiple"),
        ("openrlhf-ppo", {"train.batch_size": 100}, "1024 is not a multiple of 100"),
        ("openrlhf-ppo", {"rollout.n_samples_per_prompt": 8, "train.batch_size": 4}, "expected 8 or more"),
    ],
)
def test_what_does_not_come_out_even_is_refused(program: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        of_keys(program, keys)


def test_what_the_file_does_not_say_is_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="give it with --processes, such as --processes 1"):
        of_keys("trl-dpo", {}, processes=None)
    unknown = options().__class__.__dataclass_fields__["count_rows"].default
    with pytest.raises(ConfigurationError, match=r"num_train_epochs = 3\.0, the default of TRL 1\.16\.0:.*--rows"):
        of_keys("trl-dpo", {}, count_rows=unknown)
    with pytest.raises(ConfigurationError, match=r"actor_rollout_ref\.model\.path.*--model|path is missing.*--model"):
        of_keys("verl-ppo", {"actor_rollout_ref.model.path": None}, model=None)
    with pytest.raises(ConfigurationError, match="dataset_name is missing; name the data with --data"):
        of_keys("trl-dpo", {}, sources=())


def test_a_last_smaller_batch_that_trl_drops_is_not_counted() -> None:
    keys = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "dataloader_drop_last": True}
    assert at(of_keys("trl-sft", keys, processes=4), "iterations") == 2 * (ROWS // 16)


VERL = [("verl-ppo", f"{ACTOR}.optim", 30), ("verl-sft", "optim", 4)]
STEPS = "trainer.total_training_steps"
PASSES = "trainer.total_epochs"


@pytest.mark.parametrize(("program", "prefix", "passes"), VERL)
def test_verl_ends_after_its_passes_or_its_steps_whichever_are_fewer(program: str, prefix: str, passes: int) -> None:
    keys = {"data.train_batch_size": 1024, f"{prefix}.lr_scheduler_type": "cosine", STEPS: 2_000}
    shorter = of_keys(program, {**keys, f"{prefix}.lr_warmup_steps_ratio": 0.05, PASSES: 2})
    assert at(shorter, "iterations") == 2 * (ROWS // 1024)
    assert at(shorter, "trainer.schedule") == {"kind": "cosine", "lr_warmup_iterations": 100}
    assert {STEPS, f"{prefix}.lr_scheduler_type"} <= keys_in(shorter, List.DIFFERENT)
    assert PASSES in keys_in(shorter, List.TAKEN)
    by_default = of_keys(program, keys)
    assert at(by_default, "iterations") == passes * (ROWS // 1024)
    assert PASSES in {verdict.key for verdict in by_default.defaults}
    longer = of_keys(program, {**keys, STEPS: 20, PASSES: 3})
    assert at(longer, "iterations") == 20
    assert {STEPS, PASSES, f"{prefix}.lr_scheduler_type"} <= keys_in(longer, List.TAKEN)
    constant = of_keys(program, {**keys, PASSES: 1, f"{prefix}.lr_scheduler_type": "constant"})
    assert f"{prefix}.lr_scheduler_type" in keys_in(constant, List.TAKEN)


def test_megatrons_schedule_of_a_run_that_ends_early_is_said() -> None:
    keys = {f"{ACTOR}.strategy": "megatron", f"{ACTOR}.optim.lr_decay_style": "linear", STEPS: 2_000, PASSES: 1}
    assert f"{ACTOR}.optim.lr_decay_style" in keys_in(of_keys("verl-ppo", keys), List.DIFFERENT)


@pytest.mark.parametrize(("program", "passes"), [("verl-ppo", 30), ("verl-sft", 4)])
def test_passes_that_may_end_a_run_of_verl_are_said_where_rows_are_not_counted(program: str, passes: int) -> None:
    unknown = of_keys(program, {STEPS: 20, PASSES: 1}, count_rows=lambda sources: None)
    assert at(unknown, "iterations") == 20
    (said,) = (verdict for verdict in unknown.lists[List.DIFFERENT] if verdict.key == PASSES)
    assert "if 1 pass over the rows, whose number is not known here, has less than 20 iterations" in said.why
    by_default = of_keys(program, {STEPS: 20}, count_rows=lambda sources: None)
    (said,) = (verdict for verdict in by_default.defaults if verdict.key == PASSES)
    assert f"if {passes} passes over the rows" in said.why
