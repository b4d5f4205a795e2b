"""Rows with prompts and reference answers that a reward can compare: verl, slime, DAPO, AIME, ARC and their like.

Consumes a table. Produces a `Recognised`, or None if there are no prompts. Raises `ConfigurationError` where something is
missing for a reward.
"""

from __future__ import annotations

from ops.starter.recognition.answer_keys import ALSO_ANSWERS, answer_key, unread_answers
from ops.starter.recognition.answer_kinds import kind_of, single_answers
from ops.starter.recognition.answer_rewards import WITHOUT_REWARD, reward_for
from ops.starter.recognition.prompt_parts import PromptParts, prompt_key, prompt_parts
from ops.starter.recognition.recognised import RL, Abilities, Recognised, RecognitionOptions
from ops.starter.recognition.shown_answers import TEXT, check_shown
from ops.starter.recognition.table import Table, messages_in, value_of
from yatt_core.errors import ConfigurationError


def verifiable(table: Table, asked: RecognitionOptions, model: Abilities) -> Recognised | None:
    """Returns rows with prompts and answers as RL, with the reward that follows from the answers."""
    if not asked.allows(RL):
        return None
    question = prompt_key(table, asked)
    if question is None:
        return None
    key = answer_key(table, asked, question)
    may_be_learnt = table.find(*ALSO_ANSWERS) is not None or question.lower() == TEXT
    if key is None and may_be_learnt and asked.objective is None and not asked.own_reward:
        return None
    parts = prompt_parts(table, asked, model, answer=key, asks=key is not None)
    assert parts is not None, "the rows have a prompt"
    if table.find("tools") is not None and table.values("tools"):
        raise ConfigurationError(
            "the rows describe tools under 'tools', and no reward compares the calls of a response; use rollout.tools in a "
            "spec of your own, or rows of conversations that end with the assistant's message (--objective sft)"
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
        if seen := unread_answers(table, question):
            raise ConfigurationError(
                f"the rows have prompts ({', '.join(map(repr, parts.used))}), and no reward can compare their answers: {seen}; "
                f"or {WITHOUT_REWARD}"
            )
        raise ConfigurationError(
            f"the rows have prompts ({', '.join(map(repr, parts.used))}) and no reference answers, so nothing says which "
            f"response is right; their keys: {table.described()}; name the answers with --answer-field, or {WITHOUT_REWARD}"
        )
    check_shown(table, asked, key, parts)
    return _with_answers(table, key, parts, model)


def _with_answers(table: Table, key: str, parts: PromptParts, model: Abilities) -> Recognised:
    values = table.values(key)
    answers = single_answers(values)
    if not answers:
        raise ConfigurationError(
            f"the answers under {key!r} are objects; expected a text, a number, true or false, or a list of right answers (a "
            "dot leads into an object: --answer-field KEY.KEY)"
        )
    if missing := len(table.rows) - len(values):
        raise ConfigurationError(
            f"{missing} of the first {len(table.rows)} rows have no answer under {key!r}; leave them out, or {WITHOUT_REWARD}"
        )
    chosen = reward_for(
        key=key,
        answers=answers,
        prompts=parts.texts,
        may_ask=model.system and _may_ask(table, parts),
        are_choices=parts.choices is not None and parts.choices.by_text,
    )
    form = " in verl's form" if key.startswith(("reward_model.", "extra_info.")) else ""
    several = any(isinstance(value, list) and len(value) > 1 for value in values)
    reasons = [f"each of the answers in a list under {key!r} is right"] if several else []
    return Recognised(
        shape=f"prompts with verifiable answers{form}: prompts in {parts.used[0]!r}, answers in {key!r} "
        f"({kind_of(answers).value})",
        objective=RL,
        source={**parts.source, "answer_field": key},
        reward=chosen.reward,
        system_prompt=chosen.system_prompt,
        used=(*parts.used, key),
        reasons=(*parts.reasons, *reasons),
    )


def _may_ask(table: Table, parts: PromptParts) -> bool:
    """Returns whether a system message of the run reaches all prompts: none has one of its own, or is rendered."""
    if {"system_field", "rendered"} & set(parts.source):
        return False
    prompts = (messages_in(value_of(row, parts.used[0])) for row in table.rows)
    return not any(messages and messages[0][0] == "system" for messages in prompts)
