"""The programs of peers whose configurations are read, and how a command or a set of keys tells which one is meant.

Consumes words of a command, and keys. Produces a `Program`. Raises `ConfigurationError`, which names `--peer`, for a file that
may belong to several.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ops.starter.peers.hydra import DELETES
from ops.starter.peers.older_names import OPENRLHF_OLDER, TRL_OLDER, VERL_OLDER, VERL_SFT_OLDER
from yatt_core.errors import ConfigurationError

KEYS = Path(__file__).parent / "keys"
"""One file per program: all keys of that version with their defaults, as its own sources declare them."""
VERL = "verl 0.9.1"
TRL = "TRL 1.16.0"
OPENRLHF = "OpenRLHF 0.11.2"


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a peer.

    name: what `--peer` calls it.
    label: the peer with its version.
    learns: objective of the run, as `yatt init --objective` has it.
    hydra: whether its keys are nested, as Hydra has them; otherwise they are arguments.
    modules: how commands name it; `trl` commands have two words.
    older: keys of earlier versions, each with its present name, or itself if it has none.
    """

    name: str
    label: str
    learns: str
    hydra: bool
    modules: tuple[str, ...]
    older: Mapping[str, str]

    def present(self, key: str) -> str:
        """Returns the present name of a key; arguments may be written with hyphens, and `~` before a key stays."""
        if key.startswith(DELETES):
            return f"{DELETES}{self.present(key.removeprefix(DELETES))}"
        plain = key if self.hydra or " " in key or key.startswith("-") else key.replace("-", "_")
        return self.older.get(plain, plain)

    def knows(self, key: str) -> bool:
        """Returns whether this version, or an earlier one, has a key."""
        return key in self.older or self.present(key).removeprefix(DELETES) in self.defaults

    @property
    def defaults(self) -> dict[str, Any]:
        """All keys with their defaults."""
        return _keys(self.name)


@cache
def _keys(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((KEYS / f"{name}.json").read_text(encoding="utf-8"))
    return read


PROGRAMS = {
    program.name: program
    for program in (
        Program(
            name="verl-ppo",
            label=VERL,
            learns="rl",
            hydra=True,
            modules=("verl.trainer.main_ppo", "recipe.dapo.main_dapo", "recipe.dapo.src.main_dapo"),
            older=VERL_OLDER,
        ),
        Program(
            name="verl-sft",
            label=VERL,
            learns="sft",
            hydra=True,
            modules=("verl.trainer.sft_trainer", "verl.trainer.sft_trainer_ray", "verl.trainer.fsdp_sft_trainer"),
            older=VERL_SFT_OLDER,
        ),
        Program(
            name="trl-grpo",
            label=TRL,
            learns="rl",
            hydra=False,
            modules=("trl grpo", "grpo.py"),
            older=TRL_OLDER["grpo"],
        ),
        Program(
            name="trl-dpo", label=TRL, learns="dpo", hydra=False, modules=("trl dpo", "dpo.py"), older=TRL_OLDER["dpo"]
        ),
        Program(
            name="trl-sft", label=TRL, learns="sft", hydra=False, modules=("trl sft", "sft.py"), older=TRL_OLDER["sft"]
        ),
        Program(
            name="trl-reward",
            label=TRL,
            learns="reward_model",
            hydra=False,
            modules=("trl reward", "reward.py", "reward_modeling.py"),
            older=TRL_OLDER["reward"],
        ),
        Program(
            name="openrlhf-ppo",
            label=OPENRLHF,
            learns="rl",
            hydra=False,
            modules=("openrlhf.cli.train_ppo_ray",),
            older=OPENRLHF_OLDER["ppo"],
        ),
        Program(
            name="openrlhf-sft",
            label=OPENRLHF,
            learns="sft",
            hydra=False,
            modules=("openrlhf.cli.train_sft",),
            older=OPENRLHF_OLDER["sft"],
        ),
        Program(
            name="openrlhf-dpo",
            label=OPENRLHF,
            learns="dpo",
            hydra=False,
            modules=("openrlhf.cli.train_dpo",),
            older=OPENRLHF_OLDER["dpo"],
        ),
        Program(
            name="openrlhf-rm",
            label=OPENRLHF,
            learns="reward_model",
            hydra=False,
            modules=("openrlhf.cli.train_rm",),
            older=OPENRLHF_OLDER["rm"],
        ),
    )
}
_OTHERS = ("trl kto", "trl rloo", "trl distillation", "openrlhf.cli.", "verl.trainer.", "verl.experimental.", "recipe.")
"""Beginnings of programs of peers that are not read."""


def find_program(words: Sequence[str], place: str) -> tuple[Program, int] | None:
    """Returns the program that a command starts, with the number of words up to it and with it; None for another command.

    place: for messages.
    """
    for number, word in enumerate(words):
        pair = f"{Path(word).name} {words[number + 1]}" if number + 1 < len(words) else ""
        for program in PROGRAMS.values():
            for module in program.modules:
                if pair == module:
                    return program, number + 2
                if word == module or (module.endswith(".py") and Path(word).name == module and "/" in word):
                    return program, number + 1
        if pair in _OTHERS or word.startswith(_OTHERS[3:]):
            raise ConfigurationError(f"{place}: {pair if pair in _OTHERS else word} is not read; {_read()}")
    return None


def named_program(name: str) -> Program:
    """Returns the program that `--peer` names."""
    program = PROGRAMS.get(name)
    if program is None:
        raise ConfigurationError(f"--peer {name}: unknown; expected one of {', '.join(PROGRAMS)}")
    return program


def guess_program(keys: Collection[str], file: str) -> Program:
    """Returns the program that knows the most of a file's keys."""
    known = {name: sum(program.knows(key) for key in keys) for name, program in PROGRAMS.items()}
    most = max(known.values())
    best = [name for name, count in known.items() if count == most]
    if not most:
        raise ConfigurationError(
            f"{file}: none of its keys is one of verl, TRL or OpenRLHF; if it belongs to one of them, name it with --peer: "
            f"{', '.join(PROGRAMS)}"
        )
    if len(best) > 1:
        raise ConfigurationError(
            f"{file}: its keys may be those of {' or '.join(best)}; say which one is meant with --peer, such as --peer {best[0]}"
        )
    return PROGRAMS[best[0]]


def _read() -> str:
    return f"yatt init reads the configurations of {', '.join(PROGRAMS)}"
