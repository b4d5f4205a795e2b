"""How many tokens prompts and responses have in the first rows, for sizes that fit them.

Consumes an understanding and a model. Produces numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ops.starter.looks import LOOKED_AT, ModelLook, source_tree
from ops.starter.recognition.table import messages_in, value_of
from ops.starter.understanding import SourceMeaning, Understanding
from yatt_core.datasets.data_files import held_out_files
from yatt_core.datasets.sources import all_tasks, first_prompts
from yatt_core.errors import TooLongError
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.codec import encode_question, open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.spec import RunSpec
from yatt_core.spec.reading.load import parse_spec
from yatt_core.spec.sections.data import FileSource

FRAME_TOKENS = 16
"""Tokens that a template may write around a message."""
RESPONSES = ("chosen_field", "rejected_field")


def longest_prompt(understanding: Understanding, name: str, model: ModelLook) -> int:
    """Returns the number of tokens of the longest of the first prompts, at most the model's positions."""
    spec = _provisional(understanding, name, model)
    codec = open_codec(spec, str(model.path))
    longest = 0
    for prompt in _prompts(spec):
        try:
            longest = max(longest, len(encode_question(prompt, codec)))
        except TooLongError:
            return model.positions or longest
    return longest


def _prompts(spec: RunSpec) -> Iterator[Prompt]:
    """Yields the first prompts of each source, and the first that are held out."""
    yield from first_prompts(spec.data, spec.seed, LOOKED_AT)
    for number, source in enumerate(spec.data.sources):
        if isinstance(source, FileSource) and held_out_files(source):
            yield from all_tasks(source, number, LOOKED_AT)


def longest_response(understanding: Understanding, model: ModelLook) -> int:
    """Returns about how many tokens the longest of the first responses has that are learnt."""
    tokenizer = load_tokenizer(model.path)
    texts = (reply for source in understanding.sources for reply in _replies(source))
    return max((_tokens(tokenizer, reply) for reply in texts), default=1)


def _replies(source: SourceMeaning) -> Iterator[list[str]]:
    """Yields the texts of each response, or of all that follows a demonstration's prompt."""
    keys = source.recognised.source
    fields = [keys[name] for name in RESPONSES if name in keys] or [keys.get("answer_field", keys.get("prompt_field"))]
    for row in (*source.look.rows, *source.held_out_rows):
        for key in fields:
            value = value_of(row, key)
            messages = messages_in(value)
            if messages is None:
                yield [str(value)]
                continue
            starts = [number for number, (role, _) in enumerate(messages) if role == "assistant"]
            begin = starts[-1] if fields[0] == keys.get("chosen_field") and starts else starts[0] if starts else 0
            calls = value if isinstance(value, str) else [message.get("tool_calls") for message in value]
            yield [*(text for _, text in messages[begin:]), *([str(calls)] if any(calls) else [])]


def _tokens(tokenizer: Any, texts: list[str]) -> int:
    return sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) + FRAME_TOKENS for text in texts)


def _provisional(understanding: Understanding, name: str, model: ModelLook) -> RunSpec:
    """Returns a spec that allows prompts of any length, with which prompts can be encoded."""
    tree: dict[str, Any] = {
        "name": name,
        "model": {"kind": "folder", "path": str(model.path.resolve())},
        "data": {
            "sources": [
                source_tree(source.look.place, {**source.held_out, **source.recognised.source})
                for source in understanding.sources
            ],
            "system_prompt": understanding.system_prompt,
            "probe": 0,
            "max_prompt_tokens": 1 << 30,
        },
        "rollout": {"max_new_tokens": 1},
    }
    if understanding.samples:
        tree["rewards"] = {"parts": [{"name": "correct", "function": "exact_match"}]}
    else:
        tree["objective"] = {"kind": understanding.objective.value}
    return parse_spec(tree, "yatt init")
