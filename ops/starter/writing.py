"""Writes a first spec, and a reward file unless one is given.

Consumes looks at data and model. Produces `NAME.yaml` and `reward.py` in a folder; never replaces a file. Raises
`ConfigurationError`.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path

import psutil

from ops.starter.looks import LOOKED_AT, DataLook, ModelLook
from ops.starter.sizes import fitting_devices, fitting_sizes
from ops.starter.texts import reward_text, spec_text
from yatt_core.cluster.gpus import local_gpus
from yatt_core.datasets.sources import first_prompts
from yatt_core.errors import ConfigurationError, TooLongError
from yatt_core.prompts.codec import encode_question, open_codec
from yatt_core.rewards.functions import load_part
from yatt_core.spec import RunSpec, load_spec
from yatt_core.spec.reading.load import parse_spec

REWARD_FILE, FUNCTION = "reward.py", "score"


def default_name(data: Path) -> str:
    """Returns a run's name made from the data's file name."""
    name = re.sub(r"[^a-z0-9]+", "-", data.stem.lower()).strip("-")[:40].rstrip("-")
    return name or "run"


def write_starter(folder: Path, name: str, data: DataLook, model: ModelLook, reward: str | None) -> list[Path]:
    """Writes the files and returns their paths, the spec first; leaves none of them if the spec is not valid.

    reward: None to write a reward file.
    """
    spec = folder / f"{name}.yaml"
    texts = {spec: _spec(folder, name, data, model, reward or f"{folder / REWARD_FILE}:{FUNCTION}")}
    if reward is None:
        texts[folder / REWARD_FILE] = reward_text(data)
    if existing := [path for path in texts if path.exists()]:
        raise ConfigurationError(f"{existing[0]} exists already; expected a folder without it, or another --name")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as undo:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                undo.callback(path.unlink)
                file.write(text)
        for part in load_spec(spec).rewards.functions:
            load_part(part)
        undo.pop_all()
    return list(texts)


def _spec(folder: Path, name: str, data: DataLook, model: ModelLook, reward: str) -> str:
    devices = fitting_devices(
        len(local_gpus()), len(os.sched_getaffinity(0)), psutil.virtual_memory().total, model.parameters
    )
    longest = _longest_prompt(_provisional(name, data, model), model)
    sizes = fitting_sizes(data.rows, longest, model.positions, model.parameters, devices)
    return spec_text(name, folder, data, model, reward, sizes)


def _provisional(name: str, data: DataLook, model: ModelLook) -> RunSpec:
    """Returns a spec that allows prompts of any length, with which prompts can be encoded."""
    source = {"kind": data.kind, "path": str(data.path.resolve()), "prompt_field": data.prompt_field}
    if data.answer_field is not None:
        source["answer_field"] = data.answer_field
    tree = {
        "name": name,
        "model": {"kind": "folder", "path": str(model.path.resolve())},
        "data": {"sources": [source], "probe": 0, "max_prompt_tokens": 1 << 30},
        "rollout": {"max_new_tokens": 1},
        "rewards": {"parts": [{"name": "correct", "function": "exact_match"}]},
    }
    return parse_spec(tree, "yatt init")


def _longest_prompt(spec: RunSpec, model: ModelLook) -> int:
    """Returns the number of tokens of the longest of the first prompts, at most the model's positions."""
    codec, longest = open_codec(spec, str(model.path)), 0
    for prompt in first_prompts(spec.data, spec.seed, LOOKED_AT):
        try:
            longest = max(longest, len(encode_question(prompt, codec)))
        except TooLongError:
            return model.positions or longest
    return longest
