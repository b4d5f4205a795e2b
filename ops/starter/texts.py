"""The texts of a first spec and of its reward file. Consumes an understanding, a model and sizes; writes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.starter.looks import ModelLook
from ops.starter.recognition.recognised import SFT, RewardChoice
from ops.starter.sizes import EPOCHS, Sizes
from ops.starter.understanding import SourceMeaning, Understanding
from ops.starter.yaml_lines import entry, flow, remark, said
from yatt_core.counting import many

REWARDS = Path(__file__).parent / "rewards"
OWN_SECONDS = 5
TEST_SECONDS = 120
"""Time limits of a call of a reward: of an answer, and of all tests of a program."""
COMMENTS = {
    "sft": "learns the responses in the rows; nothing is sampled",
    "dpo": "learns from pairs; others: simpo, reward_model (docs/preferences.md)",
    "simpo": "learns from pairs without a reference model (docs/preferences.md)",
    "reward_model": "a model that scores responses (docs/preferences.md)",
    "kto": "learns from single responses with labels (docs/preferences.md)",
}


def spec_text(
    name: str, folder: Path, understanding: Understanding, model: ModelLook, rewards: Sequence[str], sizes: Sizes
) -> str:
    """Returns a commented spec.

    folder: where the spec is written; its paths are relative to it.
    rewards: files with a function in each, such as `sums/reward.py:score`, or names of installed functions; empty for the
        reward that follows from the rows.
    """
    lines = [
        f"# Written by `yatt init`. `yatt check {name}.yaml` tries it out in seconds; `yatt train {name}.yaml` starts a run.",
        "# Paths are relative to this file. `yatt schema` and docs/spec.md list all keys.",
        entry(0, "name", name),
        "seed: 0",
        said(f"iterations: {sizes.iterations}", _iteration(understanding, sizes)),
        "",
        "model:",
        *_model_lines(folder, model),
        "",
        *_data_lines(folder, understanding, model, sizes),
        "",
        *(_sampled(folder, understanding, rewards, sizes) if understanding.samples else _learnt(understanding, sizes)),
        "",
        "trainer:",
        said(f"  engine: {flow({'kind': 'torch', 'ranks': sizes.devices})}", "also fsdp2 and megatron"),
        said(f"  optimizer: {flow({'learning_rate': sizes.learning_rate})}", "usual for a model of this size"),
        "",
        "evaluation:",
        said("  every: 10", f"iterations between two measurements of {_measured(understanding)}"),
        "",
        "checkpoints:",
        said("  every: 20", "iterations; what lies between is replayed after a crash"),
    ]
    return "\n".join(lines) + "\n"


def _model_lines(folder: Path, model: ModelLook) -> Iterator[str]:
    positions = "any length" if model.positions is None else f"{model.positions:,} positions"
    facts = f"{model.parameters:,} parameters, {positions}"
    if model.repository is None:
        yield "  kind: folder"
        yield entry(2, "path", _path(model.path, folder), facts)
    else:
        yield "  kind: hub"
        yield entry(2, "repo", model.repository.repo, facts)
        yield said(
            f"  revision: {model.repository.revision}", "a commit, branch or tag; resolved once, when a run starts"
        )


def reward_text(understanding: Understanding) -> str:
    """Returns a reward file: a copy of a module of `ops/starter/rewards`."""
    name = "with_answers" if understanding.has_answers else "without_answers"
    return (REWARDS / f"{name}.py").read_text(encoding="utf-8")


def _iteration(understanding: Understanding, sizes: Sizes) -> str:
    if understanding.samples:
        return "in each: generate responses, score them, update the weights"
    rows = sum(len(source.look.rows) for source in understanding.sources)
    known = all(source.look.complete for source in understanding.sources)
    times = EPOCHS[understanding.objective]
    return f"{many(times, 'time')} through {many(rows, 'row')}" if known else "in each: learn from some rows"


def _measured(understanding: Understanding) -> str:
    return "held-out loss" if understanding.objective is SFT else "held-out accuracy"


def _data_lines(folder: Path, understanding: Understanding, model: ModelLook, sizes: Sizes) -> list[str]:
    """Returns the section `data`."""
    each = "each gets samples_per_prompt responses" if understanding.samples else "rows of an iteration"
    skips = sizes.skips or not all(source.look.complete for source in understanding.sources)
    own = any(source.held_out for source in understanding.sources)
    return [
        "data:",
        "  sources:",
        *(line for source in understanding.sources for line in _source_lines(folder, source)),
        *_system_prompt(understanding, model),
        *([] if own else [said("  # held_out: 300", "rows to measure accuracy, never trained on; default: a tenth")]),
        said(f"  prompts_per_iteration: {sizes.prompts_per_iteration}", each),
        said(f"  logical_shards: {sizes.logical_shards}", "units of work and of recovery; a crash repeats at most one"),
        said(f"  max_prompt_tokens: {sizes.max_prompt_tokens}", "including the chat template"),
        *([said("  over_long: skip", "longer rows are left out, counted and logged")] if skips else []),
    ]


def _source_lines(folder: Path, source: SourceMeaning) -> Iterator[str]:
    """Yields the lines of one source, with what was recognised and what is not used."""
    recognised = source.recognised
    look = source.look
    yield from remark(f"Recognised as {recognised.shape}.", 4)
    for reason in (*recognised.reasons, *source.says):
        yield from remark(f"{reason[0].upper()}{reason[1:]}.", 4)
    if recognised.unused:
        yield from remark(f"Not used: {', '.join(recognised.unused)}.", 4)
    rows = many(len(look.rows), "row") if look.complete else f"more than {many(len(look.rows), 'row')}"
    yield f"    - kind: {look.place.kind}"
    if look.place.repository is None:
        yield entry(6, "path", _path(look.path, folder), rows)
    else:
        yield entry(6, "repo", look.place.repository.repo, rows)
    held_out = {
        key: _path(Path(value), folder) if key == "held_out_path" else value for key, value in source.held_out.items()
    }
    for key, value in {**look.place.keys, **held_out, **recognised.source}.items():
        yield entry(6, key, value)


def _system_prompt(understanding: Understanding, model: ModelLook) -> list[str]:
    if understanding.system_prompt is not None:
        return [entry(2, "system_prompt", understanding.system_prompt, "asks for what the reward reads")]
    if not understanding.samples or not model.abilities.system:
        return []
    return ["  # system_prompt: Think step by step and end with the answer."]


def _sampled(folder: Path, understanding: Understanding, rewards: Sequence[str], sizes: Sizes) -> list[str]:
    """Returns the sections of a run that samples responses."""
    engine = flow({"kind": "torch", "instances": sizes.devices})
    return [
        "rollout:",
        said(f"  engine: {engine}", "on GPUs also {kind: vllm}: docs/vllm.md"),
        "  samples_per_prompt: 8",
        "  temperature: 1.0",
        said(f"  max_new_tokens: {sizes.max_new_tokens}", "a longer response is cut and counted as truncated"),
        "",
        "rewards:",
        "  parts:",
        *(_own_parts(folder, rewards) if rewards else _built_in(understanding.reward)),
        "",
        "algorithm:",
        said("  advantage: {kind: group_std}", "compares the responses to a prompt; gae trains a critic"),
    ]


def _learnt(understanding: Understanding, sizes: Sizes) -> list[str]:
    """Returns the sections of a run that learns from its rows."""
    kind = understanding.objective.value
    return [
        "rollout:",
        said(f"  max_new_tokens: {sizes.max_new_tokens}", "of the longest response in a row; nothing is sampled"),
        "",
        said(f"objective: {flow({'kind': kind})}", COMMENTS[kind]),
    ]


def _built_in(reward: RewardChoice | None) -> list[str]:
    if reward is None:
        return []
    seconds = TEST_SECONDS if "tests" in reward.options else OWN_SECONDS
    options = [entry(8, key, value) for key, value in reward.options.items()]
    return [
        f"    - name: {reward.name}",
        said(f"      function: {reward.function}", f"reads {reward.reads}"),
        *(["      options:", *options] if options else []),
        f"      timeout_seconds: {seconds}",
    ]


def _own_parts(folder: Path, rewards: Sequence[str]) -> Iterator[str]:
    names = part_names(rewards)
    for name, reward in zip(names, rewards, strict=True):
        file, _, function = reward.rpartition(":")
        own = file.endswith(".py")
        yield f"    - name: {name}"
        yield entry(6, "file" if own else "function", f"{_path(Path(file), folder)}:{function}" if own else reward)
        yield f"      timeout_seconds: {OWN_SECONDS}"


def part_names(rewards: Sequence[str]) -> list[str]:
    """Returns a name for each reward function, all different."""
    names = list[str]()
    for reward in rewards:
        base = re.sub(r"[^a-z0-9_]", "_", reward.rpartition(":")[2].lower()).strip("_")[:50] or "reward"
        base = base if base[0].isalpha() and base not in ("mean", "std") else f"reward_{base}"
        name = base
        number = 2
        while name in names:
            name = f"{base}_{number}"
            number += 1
        names.append(name)
    return names


def _path(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def as_json(understanding: Understanding) -> list[dict[str, Any]]:
    """Returns what was recognised in each source as JSON values."""
    return [_source_as_json(source) for source in understanding.sources]


def _source_as_json(source: SourceMeaning) -> dict[str, Any]:
    recognised = source.recognised
    look = source.look
    reward: Mapping[str, Any] | None = None
    if recognised.reward is not None:
        reward = {
            "function": recognised.reward.function,
            "options": dict(recognised.reward.options),
            "reads": recognised.reward.reads,
        }
    return {
        "path": look.place.named,
        "kind": look.place.kind,
        "rows": len(look.rows),
        "complete": look.complete,
        "recognised": recognised.shape,
        "objective": recognised.objective,
        "keys": {**look.place.keys, **recognised.source},
        "held_out": dict(source.held_out) or None,
        "reward": reward,
        "unused": list(recognised.unused),
        "reasons": [*recognised.reasons, *source.says],
    }
