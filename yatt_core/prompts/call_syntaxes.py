"""The forms in which families of models write the calls of tools: readers of text, in linear time.

Consumes the text of a turn behind its thoughts. Produces the call in it. Which form a model uses is found out by letting
its chat template write a call and reading that (`chat_template`). A model whose template writes none is told the form by
its prompts: that of `json_in_tags`.

- `json_in_tags` (Qwen 2.5 and 3, Hermes): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`
- `function_tags` (Qwen 3.5, Qwen3-Coder, Nemotron 3): `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function>
  </tool_call>`
- `argument_tags` (GLM 4.5): `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`
- `bare_json` (Llama 3): `{"name": ..., "parameters": {...}}` as the whole turn, after `<|python_tag|>` or not
- `marked_list` (Mistral): `[TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}]`, or
  `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{...}`
- `fenced_json` (DeepSeek V3, R1): `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, a fenced block, `<｜tool▁call▁end｜>`; V3.1
  writes `NAME<｜tool▁sep｜>{...}` there
- `harmony` (gpt-oss): `to=functions.NAME<|channel|>commentary json<|message|>{...}`
- `gemma` (Gemma 4): `<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>}<tool_call|>`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from yatt_core.json_text import DECODER


class MalformedCallError(Exception):
    """A turn calls a tool, but not in a form that can be read; the text tells the policy what is wrong."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as it was written.

    arguments: plain JSON values.
    texts: the arguments that are written without quotes, of which only the tool knows whether `7` is a text.
    call_id: the id that the model gave the call; empty if it gave none.
    """

    name: str
    arguments: Mapping[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)
    call_id: str = ""


Read = Callable[[str], WrittenCall | None]
"""Returns the call in a text; None if there is none. Raises `MalformedCallError`."""

DEEPEST = 100
"""Maximum nesting of lists and objects in a call, far below the limit of Python's JSON parser at any depth of the call
stack."""
CALL = "<tool_call>"
CALL_END = "</tool_call>"
_FUNCTION = re.compile(r"<function=([^>\n]{1,200})>")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,200})>")
_PARAMETER_END = "</parameter>"
_KEY = "<arg_key>"
_KEY_END = "</arg_key>"
_VALUE = "<arg_value>"
_VALUE_END = "</arg_value>"
_PYTHON: Mapping[str, Any] = {"True": True, "False": False, "None": None}
"""Values as templates write them that turn them into text."""
_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""The form of ids that Mistral's templates accept."""
_HARMONY = re.compile(r"to=functions\.([\w.-]{1,200})[^{]{0,200}?<\|message\|>")
_GEMMA = re.compile(r"call:([\w.-]{1,200})\{")
_GEMMA_KEY = re.compile(r"\s*([\w.-]{1,200})\s*:")
_GEMMA_WORD = re.compile(r"[^,\]}]{0,400}")
_GEMMA_TEXT = '<|"|>'


def json_in_tags(text: str) -> WrittenCall | None:
    """Reads one JSON object between tags."""
    body = _between(text, CALL, CALL_END)
    if body is None:
        return None
    return _checked(_parsed(body, f"there is no JSON between {CALL} and {CALL_END}"), ("arguments",))


def function_tags(text: str) -> WrittenCall | None:
    """Reads a function in tags whose parameters are texts, or JSON if they are objects, lists, numbers or booleans."""
    body = _between(text, CALL, CALL_END)
    if body is None:
        return None
    function = _FUNCTION.search(body)
    if function is None or "</function>" not in body:
        raise MalformedCallError("a call is <function=NAME> ... </function>")
    texts = dict[str, str]()
    place = function.end()
    while (parameter := _PARAMETER.search(body, place)) is not None:
        end = body.find(_PARAMETER_END, parameter.end())
        if end < 0:
            raise MalformedCallError(f"a parameter ends with {_PARAMETER_END}")
        texts[parameter[1]] = body[parameter.end() : end].removeprefix("\n").removesuffix("\n")
        place = end + len(_PARAMETER_END)  # tags in a value are part of it
    arguments = {key: _PYTHON[text] if text in _PYTHON else _value(text) for key, text in texts.items()}
    return WrittenCall(function[1], arguments, texts)


def argument_tags(text: str) -> WrittenCall | None:
    """Reads a name and pairs of keys and values in tags."""
    body = _between(text, CALL, CALL_END)
    if body is None:
        return None
    name = body.partition(_KEY)[0]
    if not name.strip():
        raise MalformedCallError(f"the name of the tool follows {CALL}")
    texts = dict[str, str]()
    start = body.find(_KEY)
    while start >= 0:
        key_end = body.find(_KEY_END, start)
        value = body.find(_VALUE, key_end)
        value_end = body.find(_VALUE_END, value)
        if min(key_end, value, value_end) < 0:
            raise MalformedCallError(f"arguments are {_KEY}KEY{_KEY_END} and {_VALUE}VALUE{_VALUE_END}")
        texts[body[start + len(_KEY) : key_end].strip()] = body[value + len(_VALUE) : value_end]
        start = body.find(_KEY, value_end)  # tags in a value are part of it
    return WrittenCall(name.strip(), {key: _value(text) for key, text in texts.items()}, texts)


def bare_json(text: str) -> WrittenCall | None:
    """Reads an object that is the whole turn, with or without the mark before it."""
    body = text.strip()
    marked = body.startswith("<|python_tag|>")
    body = body.removeprefix("<|python_tag|>").strip()
    if not body.startswith("{") or ('"name"' not in body and not marked):
        return None
    try:
        value = _parsed(body, "there is no JSON in the call")
    except MalformedCallError:
        if marked:
            raise
        return None  # an answer that happens to begin with a brace
    if not marked and not (isinstance(value, dict) and {"name", "parameters"} <= value.keys()):
        return None
    return _checked(value, ("parameters", "arguments"))


def marked_list(text: str) -> WrittenCall | None:
    """Reads a list of one call, or a name with its arguments, behind a mark."""
    _, mark, body = text.partition("[TOOL_CALLS]")
    if not mark:
        return None
    if "[TOOL_CALLS]" in body:
        raise MalformedCallError("one call a turn")
    name, separator, arguments = body.partition("[ARGS]")
    if not separator and not body.lstrip().startswith(("[", "{")):
        place = body.find("{")
        name, separator, arguments = (body[:place], "{", body[place:]) if place > 0 else (body, "", "")
    if separator:
        name, _, call_id = name.partition("[CALL_ID]")
        given = _parsed(arguments, "there is no JSON with the arguments")
        value: Any = {"name": name.strip(), "arguments": given, "id": call_id.strip()}
    else:
        value = _parsed(body, "there is no JSON behind [TOOL_CALLS]")
    if isinstance(value, list):
        if len(value) != 1:
            raise MalformedCallError(f"one call a turn, not {len(value)}")
        value = value[0]
    call = _checked(value, ("arguments",))
    given_id = value.get("id")
    # Templates reject a result whose id has another form.
    is_known = isinstance(given_id, str) and _CALL_ID.fullmatch(given_id) is not None
    return replace(call, call_id=given_id) if is_known else call


def fenced_json(text: str) -> WrittenCall | None:
    """Reads a name and a fenced block of arguments between marks."""
    body = _between(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    if body is None:
        return None
    head, separator, rest = body.partition("<｜tool▁sep｜>")
    if not separator:
        raise MalformedCallError("a call is function<｜tool▁sep｜>NAME and its arguments")
    if rest.rstrip().endswith("```"):
        name, _, block = rest.partition("\n")
        arguments = block.strip().removeprefix("```json").removesuffix("```")
    else:
        name = head
        arguments = rest
    value = _parsed(arguments, "there is no JSON with the arguments")
    return _checked({"name": name.strip(), "arguments": value}, ("arguments",))


def harmony(text: str) -> WrittenCall | None:
    """Reads a message to a function."""
    match = _HARMONY.search(text)
    if match is None:
        return None
    body = re.split(r"<\|(?:call|end|return)\|>", text[match.end() :], maxsplit=1)[0]
    value = _parsed(body, "there is no JSON with the arguments")
    return _checked({"name": match[1], "arguments": value}, ("arguments",))


def gemma(text: str) -> WrittenCall | None:
    """Reads a call whose texts are between marks of their own."""
    body = _between(text, "<|tool_call>", "<tool_call|>")
    if body is None:
        return None
    match = _GEMMA.match(body.strip())
    if match is None:
        raise MalformedCallError("a call is call:NAME{KEY:VALUE}")
    parser = _GemmaValues(body.strip(), match.end())
    return WrittenCall(match[1], parser.mapping(DEEPEST))


class _GemmaValues:
    """Reads values from a place in a text on."""

    def __init__(self, text: str, place: int) -> None:
        self._text = text
        self._place = place

    def mapping(self, levels: int) -> dict[str, Any]:
        """Returns the object of which the opening brace has been read."""
        values = dict[str, Any]()
        if self._taken("}"):
            return values
        while True:
            if self._text.startswith(_GEMMA_TEXT, self._place):
                key = self._quoted()
                self._need(":")
            else:
                match = _GEMMA_KEY.match(self._text, self._place)
                if match is None:
                    raise MalformedCallError("a key is followed by a colon")
                key = match[1]
                self._place = match.end()
            values[key] = self._value(levels - 1)
            if self._taken("}"):
                return values
            self._need(",")

    def _value(self, levels: int) -> Any:
        if not levels:
            raise MalformedCallError("the arguments are nested too deeply")
        if self._text.startswith(_GEMMA_TEXT, self._place):
            return self._quoted()
        if self._taken("{"):
            return self.mapping(levels)
        if self._taken("["):
            values = list[Any]()
            while not self._taken("]"):
                if values:
                    self._need(",")
                values.append(self._value(levels - 1))
            return values
        match = _GEMMA_WORD.match(self._text, self._place)
        word = "" if match is None else match[0]
        self._place += len(word)
        return _value(word.strip())

    def _quoted(self) -> str:
        start = self._place + len(_GEMMA_TEXT)
        end = self._text.find(_GEMMA_TEXT, start)
        if end < 0:
            raise MalformedCallError(f"a text ends with {_GEMMA_TEXT}")
        self._place = end + len(_GEMMA_TEXT)
        return self._text[start:end]

    def _taken(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._place):
            return False
        self._place += len(sign)
        return True

    def _need(self, sign: str) -> None:
        if not self._taken(sign):
            raise MalformedCallError(f"expected {sign!r} in the arguments")


SYNTAXES: Mapping[str, Read] = {
    "json_in_tags": json_in_tags,
    "function_tags": function_tags,
    "argument_tags": argument_tags,
    "bare_json": bare_json,
    "marked_list": marked_list,
    "fenced_json": fenced_json,
    "harmony": harmony,
    "gemma": gemma,
}
"""The readers by name, in the order in which they are tried on what a template writes."""
DEFAULT = "json_in_tags"
MARKS: Mapping[str, tuple[str, ...]] = {
    "json_in_tags": (CALL, CALL_END),
    "function_tags": (CALL, CALL_END, "<function=", "</function>", "<parameter=", _PARAMETER_END),
    "argument_tags": (CALL, CALL_END, _KEY, _KEY_END, _VALUE, _VALUE_END),
    "bare_json": ("<|python_tag|>",),
    "marked_list": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "fenced_json": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "harmony": ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    "gemma": ("<|tool_call>", "<tool_call|>", _GEMMA_TEXT),
}
"""What a reader looks for; these survive decoding although some are special tokens."""


def _between(text: str, opening: str, closing: str) -> str | None:
    """Returns what is between the marks of the only call; None if there is none."""
    count = text.count(opening)
    if not count:
        return None
    if count > 1:
        raise MalformedCallError(f"one call a turn, not {count}")
    body, end, _ = text.partition(opening)[2].partition(closing)
    if not end:
        raise MalformedCallError(f"a call ends with {closing}")
    return body


def _parsed(text: str, missing: str) -> Any:
    try:
        value = DECODER.decode(text)
        _check_depth(value, DEEPEST)
    except (ValueError, RecursionError):
        raise MalformedCallError(missing) from None
    return value


def _checked(value: Any, keys: tuple[str, ...]) -> WrittenCall:
    """Returns the call in an object with a name and an object of arguments under one of the keys."""
    given = value if isinstance(value, dict) else {}
    arguments = next((given[key] for key in keys if key in given), None)
    if not isinstance(given.get("name"), str) or not isinstance(arguments, dict):
        raise MalformedCallError(f'a call is {{"name": "...", "{keys[0]}": {{...}}}}')
    return WrittenCall(given["name"], arguments)


def _value(text: str) -> Any:
    """Returns a value of which only texts are written without quotes."""
    try:
        value = _parsed(text, "")
    except MalformedCallError:
        return text
    return text if isinstance(value, str) else value


def _check_depth(value: Any, levels: int) -> None:
    """Raises `ValueError` for a JSON value with more than this many levels of lists and objects."""
    if not isinstance(value, list | dict):
        return
    if not levels:
        raise ValueError("nested too deeply")
    for part in value.values() if isinstance(value, dict) else value:
        _check_depth(part, levels - 1)
