"""Writes the spec that means the same as a peer's file: chooses the program's rules, and gathers the lists.

Consumes a `PeerFile` and options. Produces a `Translation`. Raises `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ops.starter.peers import common, openrlhf, openrlhf_rows, trl_grpo, trl_rows, verl, verl_sft
from ops.starter.peers.draft import Draft
from ops.starter.peers.entries import KeyVerdict, List, PeerFile
from ops.starter.peers.places import TranslationOptions
from ops.starter.peers.programs import Program

SECTIONS = (
    "name",
    "seed",
    "iterations",
    "model",
    "data",
    "rollout",
    "dynamic_sampling",
    "rewards",
    "algorithm",
    "objective",
    "trainer",
    "evaluation",
    "checkpoints",
    "tracking",
)
"""Order of the sections of a written spec."""
_RULES: Mapping[str, Callable[[Draft, TranslationOptions], None]] = {
    "verl-ppo": verl.translate,
    "verl-sft": verl_sft.translate,
    "trl-grpo": trl_grpo.translate,
    "trl-dpo": trl_rows.translate_dpo,
    "trl-sft": trl_rows.translate_sft,
    "trl-reward": trl_rows.translate_reward,
    "openrlhf-ppo": openrlhf.translate,
    "openrlhf-sft": openrlhf_rows.translate_sft,
    "openrlhf-dpo": openrlhf_rows.translate_dpo,
    "openrlhf-rm": openrlhf_rows.translate_rm,
}


@dataclass(frozen=True, slots=True)
class Translation:
    """A spec, and what became of each key.

    tree: the spec as plain values; it may lack its name and rewards.
    lists: each key of the file, in exactly one list.
    defaults: what the file leaves unsaid, where the peer's default is not YATT's: what was written for it, or what is different.
    """

    program: Program
    tree: dict[str, Any]
    lists: Mapping[List, Sequence[KeyVerdict]]
    defaults: Sequence[KeyVerdict]


def translate(program: Program, said: PeerFile, file: str, options: TranslationOptions) -> Translation:
    """Returns the spec of a peer's file.

    file: for messages.
    """
    draft = Draft(file, program, said.entries)
    known = options if options.processes is not None else replace(options, processes=said.processes)
    _RULES[program.name](draft, known)
    common.room_for_one(draft)
    tree = {key: draft.tree[key] for key in SECTIONS if key in draft.tree}
    return Translation(program, tree, draft.lists, draft.defaults)
