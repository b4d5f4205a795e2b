"""Forms of rows that are known and that no run of YATT learns from: each is refused by its name, with what would be right.

Consumes a table. Each function raises `ConfigurationError` for its form, and returns None for other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.starter.recognition.preferences import OTHER, PREFERRED
from ops.starter.recognition.prompt_parts import CONVERSATIONS
from ops.starter.recognition.recognised import RecognitionOptions
from ops.starter.recognition.table import Table, messages_in, parsed, value_of
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.message_forms import LEARNT_ELSEWHERE, ROLES

STEP_MARK = "\u043a\u0438"
"""What Math-Shepherd writes behind a step."""
SCORES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")


def tokens(table: Table, asked: RecognitionOptions) -> None:
    """Refuses rows that are token ids."""
    key = table.find("input_ids", "token_ids", "tokens")
    if table.mostly(key, lambda value: isinstance(value, list) and all(isinstance(one, int) for one in value)):
        raise ConfigurationError(
            f"the rows are token ids under {key!r}, which belong to one tokenizer; expected the texts or messages before "
            "encoding"
        )


def speakers(table: Table, asked: RecognitionOptions) -> None:
    """Refuses conversations whose speakers have names that no run knows."""
    for key in table.all(*CONVERSATIONS, *PREFERRED, *OTHER):
        for number, row in enumerate(table.rows, start=1):
            unknown = [role for role, _ in messages_in(value_of(row, key)) or () if role not in ROLES]
            if unknown:
                raise ConfigurationError(
                    f"row {number}: {key!r} has a message of {unknown[0]!r}; expected {', '.join(ROLES)} under 'role', or "
                    "human and gpt under 'from'"
                )


def weights(table: Table, asked: RecognitionOptions) -> None:
    """Refuses messages whose key of another program says whether they are learnt: left out, they would be."""
    for key in table.all(*CONVERSATIONS, *PREFERRED, *OTHER):
        for number, row in enumerate(table.rows, start=1):
            messages = parsed(value_of(row, key))
            listed = [one for one in messages if isinstance(one, Mapping)] if isinstance(messages, list) else []
            word = next((name for one in listed for name in one if name in LEARNT_ELSEWHERE), None)
            if word is not None:
                raise ConfigurationError(
                    f"row {number}: {key!r} has a message with the key {word!r}, which is called 'weight' here; expected "
                    "'weight': 0 in messages of the assistant that are not to be learnt, and no such key in the others"
                )


def equations(table: Table, asked: RecognitionOptions) -> None:
    """Refuses numbers from which an equation has to make another one, as in Countdown: many equations are right."""
    if asked.own_reward or asked.answer_field is not None:
        return
    for holder in ("", "ground_truth.", "reward_model.ground_truth.", "reward_spec.ground_truth."):
        target = table.find(f"{holder}target")
        numbers = table.find(f"{holder}numbers", f"{holder}nums")
        if target is not None and numbers is not None and table.mostly(numbers, _are_numbers):
            raise ConfigurationError(
                f"the rows want an equation of the numbers under {numbers!r} that makes {target!r}, and no built-in reward "
                "checks equations: the target alone would be right; use --reward FILE:FUNCTION"
            )


def process_labels(table: Table, asked: RecognitionOptions) -> None:
    """Refuses rows whose steps have labels."""
    labels = table.find("labels", "step_labels", "ratings")
    steps = table.find("completions", "steps")
    listed = labels is not None and table.mostly(labels, lambda value: isinstance(value, list))
    nested = table.find("label.steps")
    marked = (key for key in table.all("label", "input") if table.mostly(key, lambda value: _has_marks(value)))
    key = labels if listed and steps else nested or next(marked, None)
    if key is not None:
        raise ConfigurationError(
            f"the rows label the steps of a response ({key!r}), and no objective trains a model of steps; expected rows with "
            "'chosen' and 'rejected', or prompts with answers"
        )


def ranked(table: Table, asked: RecognitionOptions) -> None:
    """Refuses rows with several responses that are scored, ranked or compared, and no pair made of them."""
    if table.find(*PREFERRED) is not None and table.find(*OTHER) is not None:
        return
    for key in table.all("completions", "responses", "answers", "generations", "replies"):
        values = [parsed(value) for value in table.values(key)]
        objects = all(
            isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value) for value in values
        )
        scores = table.find("ranks", "rank", "scores", "rewards", "rating")
        texts = all(isinstance(value, list) and len(value) > 1 for value in values)
        if values and ((objects and _are_scored(values)) or (texts and scores is not None)):
            raise ConfigurationError(
                f"the rows have several responses under {key!r} with scores or ranks, and objectives learn from pairs; "
                "expected one row for each pair, with 'chosen' and 'rejected'"
            )
    responses = table.find(
        "response_a", "response1", "response_1", "answer_a", "output_1", "conversation_a", "response_0"
    )
    verdict = table.find(
        "winner", "preference", "overall_preference", "better_response_id", "winner_model_a", "better", "choice"
    )
    if responses is not None and verdict is not None:
        raise ConfigurationError(
            f"the rows have two responses ({responses!r} and its other) and say which is better in {verdict!r}; expected the "
            "better one under 'chosen' and the other under 'rejected'"
        )


def half_pairs(table: Table, asked: RecognitionOptions) -> None:
    """Refuses rows with a response that is not preferred and no key of the one that is."""
    other = table.find(*OTHER)
    if other is not None and table.values(other) and table.find(*PREFERRED) is None and asked.objective is None:
        raise ConfigurationError(
            f"the rows have a response that is not preferred under {other!r} and no preferred one; expected it under "
            "'chosen' (--objective sft or rl leaves the other out)"
        )


def scored(table: Table, asked: RecognitionOptions) -> None:
    """Refuses rows with a single response and scores of it."""
    found = [key for key in SCORES if table.find(key)]
    if len(found) > 2 and table.find("response", "completion") and asked.objective is None and not asked.own_reward:
        raise ConfigurationError(
            f"the rows have single responses with the scores {', '.join(map(repr, found))}, and no objective learns scores; "
            "expected 'chosen' and 'rejected', a 'label' that is true or false, or --objective sft to learn all responses "
            "as they are"
        )


def distractors(table: Table, asked: RecognitionOptions) -> None:
    """Refuses questions whose wrong answers have keys of their own, so that no order of the choices is given."""
    wrong = [
        key for key in table.keys if key.lower().startswith(("distractor", "incorrect", "wrong_answer", "wrong answer"))
    ]
    if wrong and not asked.own_reward and asked.prompt_field is None:
        raise ConfigurationError(
            f"the rows have wrong answers under {', '.join(map(repr, wrong))} and no order of the choices; expected "
            "'choices' in the order in which they are shown, and the letter of the right one under 'answer' (--prompt-field "
            "asks without choices)"
        )


def tree(table: Table, asked: RecognitionOptions) -> None:
    """Refuses rows that are single messages of a tree."""
    parent = table.find("parent_id")
    text = table.find("text", "content")
    if parent is not None and text is not None and table.find("role") is not None:
        raise ConfigurationError(
            f"the rows are single messages of conversations that {parent!r} connects; expected one row for each "
            "conversation, with a list of messages under 'messages'"
        )


def repositories(table: Table, asked: RecognitionOptions) -> None:
    """Refuses issues of repositories, whose tests need the repository."""
    commit = table.find("base_commit")
    tests = table.find("test_patch", "FAIL_TO_PASS")
    if commit is not None and tests is not None:
        raise ConfigurationError(
            f"the rows are issues of repositories ({commit!r}, {tests!r}), whose tests need the repository's environment; "
            "code_tests runs single programs: use --reward FILE:FUNCTION that asks an environment of your own"
        )


def calls(table: Table, asked: RecognitionOptions) -> None:
    """Refuses prompts whose answers are calls of tools."""
    answers = table.find("answers", "answer", "ground_truth", "expected_calls")
    tools = table.find("tools", "functions")
    if answers is None or tools is None or asked.own_reward:
        return
    if table.mostly(answers, _is_calls):
        raise ConfigurationError(
            f"the answers under {answers!r} are calls of the tools under {tools!r}, and no built-in reward compares calls; "
            "use --reward FILE:FUNCTION, or conversations whose assistant's messages have 'tool_calls' (--objective sft)"
        )


def _are_numbers(value: Any) -> bool:
    value = parsed(value)
    return isinstance(value, list) and all(isinstance(one, (int, float)) for one in value)


def _is_calls(value: Any) -> bool:
    value = parsed(value)
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) and "name" in one for one in value)


def _are_scored(values: list[Any]) -> bool:
    words = ("score", "rank", "rating", "reward", "annotations")
    return all(any(word in str(key).lower() for key in value[0] for word in words) for value in values)


def _has_marks(value: Any) -> bool:
    return isinstance(value, str) and STEP_MARK in value
