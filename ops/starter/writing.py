"""Writes a first spec, and a reward file if the user asks for one.

Consumes what the data mean, and a model. Produces `NAME.yaml`, and `reward.py` in the same folder; never replaces a file. Raises
`ConfigurationError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from ops.starter.lengths import longest_tokens
from ops.starter.looks import ModelLook
from ops.starter.sizes import Sizes, fitting_devices, fitting_sizes, learnt_sizes
from ops.starter.texts import reward_text, spec_text
from ops.starter.understanding import Understanding
from yatt_core.cluster.gpus import local_gpus
from yatt_core.datasets.content import COMPRESSED
from yatt_core.errors import ConfigurationError
from yatt_core.rewards.functions import load_part
from yatt_core.spec import load_spec

REWARD_FILE = "reward.py"
FUNCTION = "score"
NEW = "new"
"""Stands for a reward function that has yet to be written."""


def default_name(data: Path) -> str:
    """Returns a run's name made from the data's file name."""
    file = data.with_suffix("") if data.suffix.lower() in COMPRESSED else data
    plain = data.name if data.is_dir() else file.stem
    name = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:40].rstrip("-")
    return name or "run"


def write_starter(
    folder: Path, name: str, understanding: Understanding, model: ModelLook, rewards: Sequence[str]
) -> list[Path]:
    """Writes the files and returns their paths, the spec first; leaves none of them if the spec is not valid.

    rewards: reward functions of the user's own; `NEW` writes a file with one. Empty for the reward that follows from the rows.
    """
    spec = folder / f"{name}.yaml"
    written = f"{folder / REWARD_FILE}:{FUNCTION}"
    named = [written if reward == NEW else reward for reward in rewards]
    sizes = _sizes(name, understanding, model)
    texts = {
        spec: spec_text(name=name, folder=folder, understanding=understanding, model=model, rewards=named, sizes=sizes)
    }
    if NEW in rewards:
        texts[folder / REWARD_FILE] = reward_text(understanding)
    write_whole(folder, texts)
    return list(texts)


def write_whole(folder: Path, texts: Mapping[Path, str]) -> None:
    """Writes files, the spec first; leaves none of them, nor a folder that was made for them, if the spec is not valid."""
    if existing := [path for path in texts if path.exists()]:
        raise ConfigurationError(f"{existing[0]} exists already; expected a folder without it, or another --name")
    with ExitStack() as undo:
        for made in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            made.mkdir(exist_ok=True)
            undo.callback(_remove_if_empty, made)
        folder.mkdir(exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                undo.callback(path.unlink)
                file.write(text)
        for part in load_spec(next(iter(texts))).rewards.functions:
            load_part(part)
        undo.pop_all()


def _remove_if_empty(folder: Path) -> None:
    """Removes a folder that was made here, unless someone has put something into it since."""
    if not any(folder.iterdir()):
        folder.rmdir()


def _sizes(name: str, understanding: Understanding, model: ModelLook) -> Sizes:
    devices = fitting_devices(
        len(local_gpus()), len(os.sched_getaffinity(0)), psutil.virtual_memory().total, model.parameters
    )
    rows = sum(len(source.look.rows) for source in understanding.sources)
    longest = longest_tokens(understanding, name, model)
    if understanding.samples:
        return fitting_sizes(
            rows=rows, longest=longest[0], positions=model.positions, parameters=model.parameters, devices=devices
        )
    return learnt_sizes(
        understanding.objective,
        rows=rows,
        complete=all(source.look.complete for source in understanding.sources),
        longest=longest,
        positions=model.positions,
        parameters=model.parameters,
        devices=devices,
    )
