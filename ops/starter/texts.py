"""The texts of a first spec and of its reward file. Consumes looks and sizes; writes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from ops.starter.looks import DataLook, ModelLook
from ops.starter.sizes import Sizes
from yatt_core.spec.reading.documents import yaml_text

REWARDS = Path(__file__).parent / "rewards"
COLUMN = 42
"""Column of the comments after a value."""


def spec_text(name: str, folder: Path, data: DataLook, model: ModelLook, reward: str, sizes: Sizes) -> str:
    """Returns a commented spec.

    folder: where the spec is written; its paths are relative to it.
    reward: a file and a function in it, such as `sums/reward.py:score`, or the name of an installed function.
    """
    positions = "any length" if model.positions is None else f"{model.positions:,} positions"
    file, _, function = reward.rpartition(":")
    key, value = ("file", f"{_path(Path(file), folder)}:{function}") if file.endswith(".py") else ("function", reward)
    lines = [
        f"# Written by `yatt init`. `yatt check {name}.yaml` tries it out in seconds; `yatt train {name}.yaml` starts a run.",
        "# Paths are relative to this file. `yatt schema` and docs/spec.md list all keys.",
        f"name: {_scalar(name)}",
        "seed: 0",
        _said("iterations: 200", "in each: generate responses, score them, update the weights"),
        "",
        "model:",
        "  kind: folder",
        _said(f"  path: {_path(model.path, folder)}", f"{model.parameters:,} parameters, {positions}"),
        "",
        *_data_lines(folder, data, model, sizes),
        "",
        "rollout:",
        _said(f"  engine: {{kind: torch, instances: {sizes.devices}}}", "on GPUs also {kind: vllm}: docs/vllm.md"),
        "  samples_per_prompt: 8",
        "  temperature: 1.0",
        _said(f"  max_new_tokens: {sizes.max_new_tokens}", "a longer response is cut and counted as truncated"),
        "",
        "rewards:",
        "  parts:",
        f"    - name: {'score' if key == 'file' else 'correct'}",
        f"      {key}: {_scalar(value)}",
        "      timeout_seconds: 5",
        "",
        "algorithm:",
        _said("  advantage: {kind: group_std}", "compares the responses to a prompt; gae trains a critic"),
        "",
        "trainer:",
        _said(f"  engine: {{kind: torch, ranks: {sizes.devices}}}", "also fsdp2 and megatron"),
        _said(f"  optimizer: {{learning_rate: {_scalar(sizes.learning_rate)}}}", "usual for a model of this size"),
        "",
        "evaluation:",
        _said("  every: 10", "iterations between two measurements of held-out accuracy"),
        "",
        "checkpoints:",
        _said("  every: 20", "iterations; what lies between is replayed after a crash"),
    ]
    return "\n".join(lines) + "\n"


def _data_lines(folder: Path, data: DataLook, model: ModelLook, sizes: Sizes) -> list[str]:
    """Returns the section `data`."""
    rows = f"{data.rows:,} rows" if data.complete else f"more than {data.rows:,} rows"
    return [
        "data:",
        "  sources:",
        f"    - kind: {data.kind}",
        _said(f"      path: {_path(data.path, folder)}", rows),
        f"      prompt_field: {_scalar(data.prompt_field)}",
        *([f"      answer_field: {_scalar(data.answer_field)}"] if data.answer_field else []),
        *_system_prompt(model),
        _said("  # held_out: 300", "rows to measure accuracy, never trained on; default: a tenth"),
        _said(f"  prompts_per_iteration: {sizes.prompts_per_iteration}", "each gets samples_per_prompt responses"),
        _said(
            f"  logical_shards: {sizes.logical_shards}", "units of work and of recovery; a crash repeats at most one"
        ),
        _said(f"  max_prompt_tokens: {sizes.max_prompt_tokens}", "including the chat template"),
        *([_said("  over_long: skip", "longer prompts are left out, counted and logged")] if sizes.skips else []),
    ]


def reward_text(data: DataLook) -> str:
    """Returns a reward file: a copy of a module of `ops/starter/rewards`."""
    name = "without_answers" if data.answer_field is None else "with_answers"
    return (REWARDS / f"{name}.py").read_text(encoding="utf-8")


def _system_prompt(model: ModelLook) -> list[str]:
    return ["  # system_prompt: Think step by step and end with the answer."] if model.has_chat_template else []


def _said(line: str, comment: str) -> str:
    return f"{line:<{COLUMN}}# {comment}"


def _scalar(value: str | float) -> str:
    return yaml_text(value).removesuffix("...\n").strip()


def _path(path: Path, folder: Path) -> str:
    return _scalar(os.path.relpath(path.resolve(), folder.resolve()))
