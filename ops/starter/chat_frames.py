"""What a chat template does with system messages and tools, and the control tokens that it writes: by trying it out.

Consumes a tokenizer of transformers. Produces `Abilities`. A template that fails on something cannot do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from ops.starter.recognition.recognised import Abilities
from yatt_core.models.template_rendering import render_messages

WORD = "quokka"
SYSTEM_WORD = "wombat"
TOOL_WORD = "numbat"
"""Words that no template contains."""
QUESTION = {"role": "user", "content": WORD}
TOOL = {
    "type": "function",
    "function": {
        "name": TOOL_WORD,
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string", "description": "of it"}}},
    },
}
ARGUMENTS: tuple[Any, ...] = ({"name": WORD}, '{"name": "quokka"}')
THOUGHT_MARKS = ("think", "tool", "reason", "thought")
"""Parts of the names of tokens that are no frame: prompts may ask for them."""


def abilities_of(tokenizer: Any, images: bool) -> Abilities:
    """Returns what a model can do with rows.

    images: whether the model has a vision tower.
    """
    plain = _rendered(tokenizer, [QUESTION])
    system = _rendered(tokenizer, [{"role": "system", "content": SYSTEM_WORD}, QUESTION])
    tools = _rendered(tokenizer, [QUESTION], [TOOL])
    special = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    tokens = [token for token in special if token in plain]
    return Abilities(
        images=images,
        tools=TOOL_WORD in tools,
        calls=any(TOOL_WORD in _rendered(tokenizer, [QUESTION, _calling(value)]) for value in ARGUMENTS),
        system=SYSTEM_WORD in system,
        frame=tuple(token for token in tokens if not any(mark in token.lower() for mark in THOUGHT_MARKS)),
    )


def _calling(arguments: Any) -> dict[str, Any]:
    """Returns a message of the assistant that calls a tool; templates take its arguments as an object or as JSON text."""
    call = {"id": "call00000", "type": "function", "function": {"name": TOOL_WORD, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> str:
    """Returns messages as the template renders them; the empty text if it does not."""
    if tokenizer.chat_template is None:
        return ""
    try:
        return render_messages(tokenizer, messages, tools, generates=True)
    except (TemplateError, TypeError, ValueError, KeyError):
        return ""
