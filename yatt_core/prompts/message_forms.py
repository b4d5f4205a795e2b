"""One message of a conversation, in the forms that files have: {role, content} of chat APIs, {from, value} of ShareGPT.

Consumes a value of a row. Produces a `Message`. Raises `DataError`, which names the message, the key and what is expected. A
key that could change what the message means is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yatt_core.errors import DataError
from yatt_core.json_text import object_in, parsed
from yatt_core.models.tokenizer import IMAGE
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.tool_calls import ToolCall

SYSTEM, USER, ASSISTANT, TOOL = ROLES = ("system", "user", "assistant", "tool")
_OTHER_ROLES = {"developer": SYSTEM, "function": TOOL}
_SPEAKERS = {
    "system": SYSTEM,
    "human": USER, "user": USER,
    "gpt": ASSISTANT, "assistant": ASSISTANT, "chatgpt": ASSISTANT, "bard": ASSISTANT, "model": ASSISTANT,
    "tool": TOOL, "observation": TOOL, "function": TOOL,
}  # fmt: skip
"""Names of the speakers in conversations of the form {from, value}."""
_CALLER = "function_call"
"""The speaker whose value is the JSON text of a call."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_HARMLESS = frozenset({"id", "message_id", "timestamp", "created_at", "model"})
"""Keys that identify a message, and say nothing about its meaning."""
_OF_THE_ASSISTANT = frozenset({*_THOUGHTS, "tool_calls", "function_call", "weight"})
LEARNT_ELSEWHERE = frozenset({"train", "training", "trainable", "loss", "loss_weight", "train_detail"})
"""Keys by which other programs say whether a message is learnt, for which `weight` is the key here."""
_KNOWN = _OF_THE_ASSISTANT | {"role", "content", "name", "tool_call_id"}


def read_message(item: Any, place: str) -> Message:
    """Returns a message.

    place: the message's number, with which errors begin.
    """
    if not isinstance(item, Mapping):
        raise DataError(f"{place} is {type(item).__name__}; expected {{role, content}}")
    given = {key: value for key, value in item.items() if value is not None and value != [] and key not in _HARMLESS}
    if "content" in item and isinstance(item["content"], list):
        given["content"] = item["content"]
    if "from" in given and "role" not in given:
        given = _of_speaker(given, place)
    role = _OTHER_ROLES.get(str(given.get("role")), given.get("role"))
    if role not in ROLES:
        raise DataError(f"{place} has the role {item.get('role')!r}; expected one of {', '.join(ROLES)}")
    _check_keys(given, role, place)
    calls = _calls(given, place)
    thoughts = _thoughts(given, place)
    content = _content(given.get("content"), place)
    if not content.strip() and role not in (SYSTEM, TOOL) and not calls and not thoughts:
        raise DataError(f"{place}: content must be a non-empty string, or a list of parts")
    return Message(
        role=role,
        content=content,
        thoughts=thoughts,
        calls=calls,
        name=_text(given, "name", place),
        call_id=_text(given, "tool_call_id", place),
        learnt=_learnt(given, place) or role != ASSISTANT,
    )


def role_of(item: Mapping[str, Any]) -> str | None:
    """Returns the role of a message as `read_message` understands it; another word as it is, and None if it has none."""
    word = item.get("role")
    known = _OTHER_ROLES
    if word is None:
        word = item.get("from")
        known = {**_SPEAKERS, _CALLER: ASSISTANT}
    return known.get(word, word) if isinstance(word, str) else None


def _of_speaker(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Returns a message of the form {from, value} in the form {role, content}."""
    speaker = given["from"]
    rest = {key: value for key, value in given.items() if key not in ("from", "value")}
    if "content" in rest:
        raise DataError(f"{place} has the keys 'from' and 'content'; expected {{from, value}} or {{role, content}}")
    if speaker == _CALLER:
        return {**rest, "role": ASSISTANT, "tool_calls": _called(given.get("value"), place)}
    if speaker not in _SPEAKERS:
        known = ", ".join((*_SPEAKERS, _CALLER))
        raise DataError(f"{place} is from {speaker!r}; expected one of {known}")
    return {**rest, "role": _SPEAKERS[speaker], "content": given.get("value")}


def _called(value: Any, place: str) -> Any:
    """Returns the calls in a speaker's value: the JSON text of one, or of a list of them."""
    call = parsed(value, "[") if isinstance(value, str) and value.lstrip().startswith("[") else object_in(value)
    if call is None:
        raise DataError(f"{place}: the value of {_CALLER} must be JSON text, {{name: NAME, arguments: {{...}}}}")
    return call if isinstance(call, list) else [call]


def _check_keys(given: Mapping[str, Any], role: str, place: str) -> None:
    unknown = [key for key in given if key not in _KNOWN]
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        remedy = "write 'weight': 0 if it is not to be learnt" if unknown[0] in LEARNT_ELSEWHERE else "leave it out"
        raise DataError(f"{place} has the key {unknown[0]!r}, which has no meaning here; {remedy}; known: {known}")
    misplaced = [key for key in given if key in _OF_THE_ASSISTANT and role != ASSISTANT and key != "weight"]
    if misplaced:
        raise DataError(f"{place} has the key {misplaced[0]!r}, but the role {role}; expected the role assistant")


def _content(content: Any, place: str) -> str:
    if isinstance(content, list):
        return "".join(_part(part, f"{place}, part {number}") for number, part in enumerate(content, start=1))
    if content is not None and not isinstance(content, str):
        raise DataError(f"{place}: content is {type(content).__name__}; expected a string, or a list of parts")
    return content or ""


def _part(part: Any, place: str) -> str:
    given = {key: value for key, value in part.items() if value is not None} if isinstance(part, Mapping) else {}
    if given.keys() == {"type", "text"} and given["type"] == "text" and isinstance(given["text"], str):
        return str(given["text"])
    if given == {"type": "image"}:
        return IMAGE
    raise DataError(f"{place}: expected {{type: text, text: TEXT}}, or {{type: image}} with the image in image_field")


def _thoughts(given: Mapping[str, Any], place: str) -> str:
    found = {key: _text(given, key, place) for key in _THOUGHTS if key in given}
    if len(set(found.values())) > 1:
        raise DataError(f"{place} has different thoughts in {' and '.join(found)}; expected one of these keys")
    return next(iter(found.values()), "")


def _learnt(given: Mapping[str, Any], place: str) -> bool:
    weight = given.get("weight", 1)
    if weight not in (0, 1):
        raise DataError(f"{place}: weight is {weight!r}; expected 0 or 1")
    return bool(weight)


def _text(given: Mapping[str, Any], key: str, place: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str):
        raise DataError(f"{place}: {key} is {type(value).__name__}; expected a string")
    return value


def _calls(given: Mapping[str, Any], place: str) -> tuple[ToolCall, ...]:
    calls = given.get("tool_calls", [])
    if isinstance(calls, str):
        calls = parsed(calls, "[")
    if not isinstance(calls, list):
        raise DataError(f"{place}: tool_calls must be a list of calls, {{function: {{name, arguments}}}}")
    if "function_call" in given:
        calls = [*calls, given["function_call"]]
    return tuple(_call(call, f"{place}, call {number}") for number, call in enumerate(calls, start=1))


def _call(call: Any, place: str) -> ToolCall:
    """Returns a call, of the form {id, type: function, function: {name, arguments}} or {name, arguments}."""
    outer = object_in(call)
    inner = object_in(outer["function"]) if outer is not None and "function" in outer else outer
    if outer is None or inner is None or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise DataError(f"{place}: expected {{function: {{name, arguments}}}}, or {{name, arguments}}")
    given = inner.get("arguments", inner.get("parameters"))
    if given is None or given == "":
        given = {}
    arguments = object_in(given)
    if arguments is None:
        raise DataError(f"{place}: the arguments of {inner['name']} must be an object, or the JSON text of one")
    call_id = outer.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise DataError(f"{place}: id is {type(call_id).__name__}; expected a string")
    return ToolCall(inner["name"], dict(arguments), call_id or "")
