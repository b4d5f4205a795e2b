"""What is known before rows are recognised, and what recognition returns: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ObjectiveKind(StrEnum):
    """What a run may learn: from rewards for sampled responses, or from its rows."""

    RL = "rl"
    SFT = "sft"
    DPO = "dpo"
    SIMPO = "simpo"
    REWARD_MODEL = "reward_model"
    KTO = "kto"


RL = ObjectiveKind.RL
SFT = ObjectiveKind.SFT
KTO = ObjectiveKind.KTO
PAIRS = (ObjectiveKind.DPO, ObjectiveKind.SIMPO, ObjectiveKind.REWARD_MODEL)
"""What is learnt from pairs of responses; the first is the default."""


@dataclass(frozen=True, slots=True)
class RecognitionOptions:
    """What the options of the command say about the rows.

    objective: None if the rows decide.
    own_reward: whether the user names reward functions, or asks for a file with one.
    """

    prompt_field: str | None = None
    answer_field: str | None = None
    objective: ObjectiveKind | None = None
    own_reward: bool = False

    def allows(self, *objectives: ObjectiveKind) -> bool:
        """Returns whether the rows may be used for one of the objectives."""
        wanted = RL if self.objective is None and self.own_reward else self.objective
        return wanted is None or wanted in objectives


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model's folder can do with rows.

    images: whether it has a vision tower.
    tools: whether its chat template shows descriptions of tools.
    calls: whether its chat template writes the calls in a message of the assistant.
    system: whether its chat template shows a system message.
    frame: control tokens that its chat template writes around a message.
    """

    images: bool = False
    tools: bool = False
    calls: bool = False
    system: bool = False
    frame: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardChoice:
    """A built-in reward that follows from the rows.

    name: of the part.
    reads: what it compares, in words.
    """

    name: str
    function: str
    reads: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recognised:
    """What rows mean.

    shape: the form of the rows, in words.
    source: keys of the source in the spec that say where a row has what.
    reward: the reward that follows; None if the objective has none, or the user's own is used.
    system_prompt: what the prompts have to ask for so that the reward can be read; None if nothing is missing.
    used: the rows' keys that the source and the reward name, dotted where nested.
    unused: the rows' other keys.
    reasons: sentences that say why, for the user.
    """

    shape: str
    objective: ObjectiveKind
    source: Mapping[str, Any]
    reward: RewardChoice | None = None
    system_prompt: str | None = None
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
