"""Rows with prompts and reference answers that a reward can compare: verl, slime, DAPO, AIME, ARC and their like.

Consumes a table. Produces a `Recognised`, or None if there are no prompts. Raises `ConfigurationError` where something is
missing for a reward.
"""

from __future__ import annotations

from dataclasses import replace

from ops.starter.recognition.answer_kinds import kind_of, single_answers
from ops.starter.recognition.answer_rewards import WITHOUT_REWARD, reward_for
from ops.starter.recognition.prompt_parts import PromptParts, given_key, prompt_parts
from ops.starter.recognition.recognised import RL, Abilities, Asked, Recognised
from ops.starter.recognition.table import Table, parsed
from yatt_core.errors import ConfigurationError

NESTED = (
    "reward_model.ground_truth", "reward_model.ground_truth.target", "reward_spec.ground_truth", "extra_info.answer",
    "extra_info.ground_truth", "verification_info.ground_truth", "metadata.answer", "info.answer",
)  # fmt: skip
ANSWER_KEYS = (
    "answer", "final_answer", "expected_answer", "ground_truth", "reference_answer", "reference", "answerKey",
    "correct_answer", "correct_option", "gold", "golden_answers", "cop", "gt", "target", "label", "correct",
    "expected", "solution",
)  # fmt: skip
TEXT = "text"
"""A key that is a prompt only beside answers: alone, it is text to learn."""
ALSO_ANSWERS = ("output", "response", "completion", "answers")
"""Keys that have an answer only for those who ask for RL: they are demonstrations otherwise."""


def verifiable(table: Table, asked: Asked, model: Abilities) -> Recognised | None:
    """Returns rows with prompts and answers as RL, with the reward that follows from the answers."""
    if not asked.allows(RL):
        return None
    parts = prompt_parts(table, asked, model)
    if parts is None:
        return None
    key = answer_key(table, asked, parts)
    if table.find("tools") is not None and table.values("tools"):
        raise ConfigurationError(
            "the rows describe tools under 'tools', and no reward compares the calls of a response; use "
            "rollout.tools in a spec of "
            "your own, or rows of conversations that end with the assistant's message (--objective sft)"
        )
    if asked.own_reward:
        source = {**parts.source, **({"answer_field": key} if key else {})}
        return Recognised(
            shape=f"prompts for a reward of your own: prompts in {parts.used[0]!r}{f', answers in {key!r}' if key else ''}",
            objective=RL,
            source=source,
            used=(*parts.used, *([key] if key else [])),
            reasons=parts.reasons,
        )
    if key is None:
        if asked.objective is None and (table.find(*ALSO_ANSWERS) or parts.used[0].lower() == TEXT):
            return None
        raise ConfigurationError(
            f"the rows have prompts ({', '.join(map(repr, parts.used))}) and no reference answers, so nothing "
            "says which response is "
            f"right; their keys: {table.described()}; name the answers with --answer-field, or {WITHOUT_REWARD}"
        )
    return _with_answers(table, key, parts, model)


def answer_key(table: Table, asked: Asked, parts: PromptParts) -> str | None:
    """Returns the key of the reference answers; None if there is none."""
    if asked.answer_field is not None:
        return given_key(table, asked.answer_field, "--answer-field")
    also = ALSO_ANSWERS if asked.objective == RL else ()
    found = [key for key in table.all(*ANSWER_KEYS, *NESTED, *also) if key not in parts.used]
    for key in found:
        values = [parsed(value) for value in table.values(key)]
        if values and single_answers(values) is not None:
            return key
    return None


def _with_answers(table: Table, key: str, parts: PromptParts, model: Abilities) -> Recognised:
    answers = single_answers([parsed(value) for value in table.values(key)])
    if not answers:
        raise ConfigurationError(
            f"the answers under {key!r} are objects; expected a text, a number, true or false, or a list of right "
            "answers (a dot "
            "leads into an object: --answer-field KEY.KEY)"
        )
    if missing := len(table.rows) - len(table.values(key)):
        raise ConfigurationError(
            f"{missing} of the first {len(table.rows)} rows have no answer under {key!r}; leave them out, or "
            f"{WITHOUT_REWARD}"
        )
    may_ask = not {"system_field", "rendered"} & set(parts.source)
    chosen = reward_for(key, answers, parts.texts, replace(model, system=model.system and may_ask))
    form = " in verl's form" if key.startswith(("reward_model.", "extra_info.")) else ""
    kind = kind_of(answers).value
    return Recognised(
        shape=f"prompts with verifiable answers{form}: prompts in {parts.used[0]!r}, answers in {key!r} ({kind})",
        objective=RL,
        source={**parts.source, "answer_field": key},
        reward=chosen.reward,
        system_prompt=chosen.system_prompt,
        used=(*parts.used, key),
        reasons=parts.reasons,
    )
