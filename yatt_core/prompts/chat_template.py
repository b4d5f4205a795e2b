"""What a model's chat template writes: prompts, replies to learn from, and what stands between two turns.

Consumes messages. Produces rendered texts in which the texts of others are guarded (`control_text`), and what is known about
the template, found out by rendering made-up conversations: what ends a turn of the assistant, what it begins with, how
thoughts are marked and calls of tools are written. Raises jinja2's `TemplateError` for conversations that it rejects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jinja2 import TemplateError

from yatt_core.models.template_rendering import render_messages
from yatt_core.prompts.call_syntaxes import DEFAULT, MARKS, SYNTAXES, MalformedCallError
from yatt_core.prompts.common_prefix import common_length
from yatt_core.prompts.control_text import ControlText
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.thoughts import THINK, Marks
from yatt_core.prompts.tool_calls import ToolCall

Tools = Sequence[Mapping[str, Any]]
"""Descriptions of tools in the form of chat templates."""
QUESTION = Message("user", "?")
CONTENT = "the-text-of-the-assistant"
"""Stands for an assistant's text where only what is around it matters."""
UNFIT = (TemplateError, TypeError, ValueError, KeyError)
"""What a template raises for a message in a form that it does not take."""
PROBE = ToolCall("a_tool", {"place": "here", "count": 3, "exact": True}, "callid123")
PROBED_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": PROBE.name,
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "count": {"type": "integer"}, "exact": {"type": "boolean"}},
            "required": ["place", "count", "exact"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template takes calls, and how it writes them.

    as_text: whether it takes the arguments as JSON text instead of an object.
    without_content: whether it takes null as the text of a message that only calls a tool.
    syntax: the form in which it writes calls, one of `SYNTAXES`; empty if it drops them.
    """

    as_text: bool = False
    without_content: bool = False
    syntax: str = DEFAULT


class ChatTemplate:
    """The chat template of a tokenizer.

    variables: variables of the template that a spec sets.
    system: the system message that a spec sets; it is trusted, and may name tags of the model.
    """

    def __init__(
        self,
        tokenizer: Any,
        control: ControlText,
        marks: Marks,
        variables: Mapping[str, Any],
        system: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._variables = dict(variables)
        self._system = system
        self.marks = marks

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools = (),
        generates: bool = True,
        shown: Callable[[str], Any] | None = None,
    ) -> str:
        """Returns a conversation as the model reads it, with guarded texts.

        generates: whether the beginning of the assistant's next turn follows.
        shown: what the template gets in place of a guarded text that may contain images.
        """
        return self.render_plain([self._given(message, shown=shown) for message in messages], tools, generates)

    def render_plain(self, messages: Sequence[Mapping[str, Any]], tools: Tools = (), generates: bool = True) -> str:
        """Returns a conversation of messages as chat templates take them. Nothing is guarded."""
        return render_messages(
            tokenizer=self._tokenizer,
            messages=messages,
            tools=list(tools) or None,
            generates=generates,
            variables=self._variables,
        )

    @cached_property
    def takes_text(self) -> bool:
        """Whether the template takes a message's text as it is; some take a list of parts only, and drop or reject a text."""
        return self._shows(CONTENT) or not self._shows(_part(CONTENT))

    def _shows(self, content: Any) -> bool:
        try:
            return CONTENT in self.render_plain([{"role": "user", "content": content}])
        except UNFIT:
            return False

    @cached_property
    def prefill(self) -> str:
        """What the template writes at the beginning of the assistant's turn and belongs to it; empty if nothing.

        An opening mark of thoughts, or empty thoughts where the template's variables switch them off.
        """
        before = self.render([QUESTION], generates=False)
        opening = self.render([QUESTION]).removeprefix(before)
        place = opening.find(self.marks.begin)
        return opening[place:] if place >= 0 else ""

    @cached_property
    def missing_opening(self) -> str:
        """What it writes between a question and the assistant's text, if a prompt does not end with it; empty if nothing.

        A template without generation prompt needs none where nothing stands there, as in Mistral's.
        """
        prompt = self.render([QUESTION])
        if prompt != self.render([QUESTION], generates=False):
            return ""
        head = _divided(self.render([QUESTION, Message("assistant", CONTENT)], generates=False))[0]
        return head.removeprefix(prompt).strip() if head.startswith(prompt) else ""

    @cached_property
    def end(self) -> tuple[int, ...]:
        """The tokens that the template writes behind an assistant's text: the end of its turn, and what follows it.

        The first ends the turn. Empty if the template marks no end.
        """
        if place := self._first_added(self._alone):
            return tuple(self._alone[place - 1 :])
        followed = self.render([QUESTION, Message("assistant", CONTENT), QUESTION], generates=False)
        behind = self._control.encode(_divided(followed)[1], goes_on=True)
        # The turn ends with the mark of the next one, as in GLM 4.5.
        return tuple(behind[:1]) if self._first_added(behind) == 1 else ()

    @cached_property
    def ends_by_next(self) -> bool:
        """Whether the mark that ends a turn is written with the next turn only."""
        return bool(self.end) and not self._first_added(self._alone)

    @cached_property
    def _alone(self) -> list[int]:
        """The tokens that the template writes behind an assistant's text that ends the conversation."""
        return self._control.encode(self.behind(Message("assistant", CONTENT)), goes_on=True)

    def behind(self, message: Message, before: Sequence[Message] = (QUESTION,), tools: Tools = ()) -> str:
        """Returns what the template writes behind the text of an assistant's message that ends the conversation."""
        return _divided(self.render([*before, message], tools, generates=False))[1]

    @cached_property
    def calls(self) -> CallForm | None:
        """How the template takes and writes calls; None if it writes them in a form that cannot be read.

        Rendered arguments that come back as they were show which form the template takes.
        """
        for form, text in self._written_calls:
            for name in SYNTAXES:
                if _reads_back(name, text):
                    return replace(form, syntax=name)
        return None if any(PROBE.name in text for _, text in self._written_calls) else CallForm(syntax="")

    @cached_property
    def writes_parts_of_calls(self) -> bool:
        """Whether the template writes anything of a call: its name, its id, or one of its arguments."""
        parts = (PROBE.name, PROBE.call_id, *(f'"{key}"' for key in PROBE.arguments))
        return any(part in text for _, text in self._written_calls for part in parts)

    @cached_property
    def _written_calls(self) -> Sequence[tuple[CallForm, str]]:
        """What the template writes for a call in each form that it takes, without a syntax."""
        found = list[tuple[CallForm, str]]()
        for without_content in (False, True):
            for as_text in (False, True):
                form = CallForm(as_text, without_content, "")
                with suppress(*UNFIT):
                    found.append((form, self._written_call(form)))
        return found

    def end_of_call(self, stop_tokens: Collection[int]) -> int | None:
        """Returns the token that ends a turn that calls a tool, if no stop token does; None if one does, or if there is none.

        It is what the template writes last, or the mark of the next turn if that is the mark of the call's own end.
        """
        message = Message("assistant", "", calls=(PROBE,))
        result = Message("tool", "?", name=PROBE.name, call_id=PROBE.call_id)
        alone, followed = self.between(message, [result], (PROBED_TOOL,))
        behind = self._control.encode(alone, goes_on=True)
        after = followed[len(alone) :] if followed.startswith(alone) else ""
        following = self._control.encode(after, goes_on=True)
        if set(behind) & set(stop_tokens) or set(following[:1]) & set(stop_tokens):
            return None
        marks = MARKS[self.calls.syntax] if self.calls is not None and self.calls.syntax else ()
        ends = [token for token in behind if self._first_added([token]) and self._text(token) not in marks]
        return next((token for token in [*ends[-1:], *following[:1]] if self._first_added([token])), None)

    def _text(self, token: int) -> str:
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def _written_call(self, form: CallForm) -> str:
        """Returns the text of a turn that calls a tool."""
        message = Message("assistant", "", calls=(PROBE,))
        given = [self._given(QUESTION), self._given(message, form)]
        before = self.render([QUESTION], (PROBED_TOOL,))
        text = self.render_plain(given, (PROBED_TOOL,), generates=False)
        return text[common_length(before, text) :]

    def rendered_turn(self, before: Sequence[Message], message: Message, tools: Tools = ()) -> str:
        """Returns the conversation that ends with an assistant's message, with its thoughts.

        Thoughts are given to the template in the form that it writes. Where it drops them in any form (DeepSeek R1), they
        are put where it writes the text.
        """
        thoughts, content = self._apart(message)
        said = self._control.without_marks(self._control.guard_special(content.strip()))
        if not thoughts:
            text = self.render([*before, message], tools, generates=False)
            if not message.calls and said not in self._control.without_marks(text):
                raise TemplateError("it changes or drops the text of an assistant's message")
            return text
        opening = f"{self.marks.begin}\n"
        tagged = f"{opening}{thoughts}\n{self.marks.end}\n\n{content}"
        forms = list[Message]()
        if message.thoughts or self.marks != THINK:
            forms.append(_replaced(message, content, thoughts))
        forms.append(_replaced(message, tagged if message.thoughts else message.content))
        prompt = self.render(before, tools)
        for form in forms:
            text = self.render([*before, form], tools, generates=False)
            turn = self._control.without_marks(text[common_length(prompt, text) :])
            # A text that names the marks is cut at one of them by some templates.
            if thoughts in turn and said in turn:
                return text
        head, tail = _divided(self.render([*before, _replaced(message, CONTENT)], tools, generates=False))
        if self.prefill.startswith(self.marks.begin) and not self.prefill.rstrip().endswith(self.marks.end):
            tagged = tagged.replace(opening, self.prefill, 1)
        return head + self._control.guard_special(tagged) + tail

    def _apart(self, message: Message) -> tuple[str, str]:
        """Returns the thoughts of an assistant's message, empty if there are none, and its text without them.

        Rows have thoughts in a key of their own, between the model's marks, or between those of most models.
        """
        if message.thoughts:
            return message.thoughts.strip(), message.content
        for marks in (self.marks, THINK):
            head, ends, final = message.content.partition(marks.end)
            if not ends:
                continue
            # What follows is text, whatever it spells: a finished answer may name the marks.
            before, begins, thoughts = head.partition(marks.begin)
            said = final[marks.framing_end(final, 0) :].lstrip("\n")
            return (thoughts.strip(), before + said) if begins else (head.strip(), said)
        return "", message.content

    def between(
        self, message: Message, following: Sequence[Message], tools: Tools = (), before: Sequence[Message] = (QUESTION,)
    ) -> tuple[str, str]:
        """Returns what stands behind an assistant's text: at the end of a conversation, and where messages follow it.

        The second ends with the beginning of the assistant's next turn. For a message that calls tools, both begin within
        the last call.
        """
        if message.calls:  # some templates write them before the text, and empty thoughts only at the end
            *others, last = message.calls
            marked = Message(
                "assistant", message.content, calls=(*others, ToolCall(last.name, {"text": CONTENT}, last.call_id))
            )
        else:
            marked = Message("assistant", CONTENT)
        alone = self.behind(marked, before, tools)
        return alone, _divided(self.render([*before, marked, *following], tools))[1]

    def _first_added(self, tokens: Sequence[int]) -> int:
        """Returns the number, from 1, of the first token that is no ordinary text; 0 if there is none."""
        added = self._tokenizer.added_tokens_decoder
        return next((number for number, token in enumerate(tokens, start=1) if token in added), 0)

    def _given(
        self, message: Message, form: CallForm | None = None, shown: Callable[[str], Any] | None = None
    ) -> dict[str, Any]:
        """Returns a message as chat templates take it, with a guarded text."""
        guard = self._control.guard_special if message.role == "assistant" else self._control.guard
        is_trusted = message.role == "system" and message.content == self._system
        content = message.content if is_trusted else guard(message.content)
        given: dict[str, Any] = {"role": message.role, "content": content}
        if message.role != "system":  # it cannot contain images, and templates expect it as text
            given["content"] = (shown or self._shown)(content)
        if message.thoughts:
            thoughts = guard(message.thoughts)
            # Families name the key differently; templates read one of these and ignore the others.
            given |= {"reasoning_content": thoughts, "reasoning": thoughts, "thinking": thoughts}
        if message.calls:
            taken = form or self.calls or CallForm()
            if form is None and not taken.syntax:
                raise TemplateError("it does not write the calls of tools in a message of the assistant")
            given["tool_calls"] = [self._given_call(call, taken.as_text) for call in message.calls]
            if taken.without_content and not message.content:
                given["content"] = None
        if message.name:
            given["name"] = guard(message.name)
        if message.call_id:
            given["tool_call_id"] = guard(message.call_id)
        return given

    def _shown(self, text: str) -> Any:
        return text if self.takes_text else _part(text)

    def _given_call(self, call: ToolCall, as_text: bool) -> dict[str, Any]:
        guard = self._control.guard_special
        arguments = _guarded(dict(call.arguments), guard)
        taken = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
        given: dict[str, Any] = {"type": "function", "function": {"name": guard(call.name), "arguments": taken}}
        return {"id": self._control.guard(call.call_id), **given} if call.call_id else given

    def guarded_tools(self, tools: Tools) -> Tools:
        """Returns the descriptions of tools that a row brings, with guarded texts."""
        return [_guarded(tool, self._control.guard) for tool in tools]


def _guarded(value: Any, guard: Callable[[str], str]) -> Any:
    """Returns a JSON value in which all texts are guarded, those of keys too."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {guard(key): _guarded(part, guard) for key, part in value.items()}
    if isinstance(value, list):
        return [_guarded(part, guard) for part in value]
    return value


def _divided(rendered: str) -> tuple[str, str]:
    """Returns what a template writes before and behind the text that stands for an assistant's."""
    before, found, behind = rendered.rpartition(CONTENT)
    if not found:
        raise TemplateError("it drops the text of an assistant's message")
    return before, behind


def _part(text: str) -> list[dict[str, str]]:
    """Returns a text as templates take it that expect texts and images as separate parts."""
    return [{"type": "text", "text": text}]


def _replaced(message: Message, content: str, thoughts: str = "") -> Message:
    """Returns an assistant's message with another text."""
    return Message(role="assistant", content=content, thoughts=thoughts, calls=message.calls, name=message.name)


def _reads_back(name: str, text: str) -> bool:
    """Returns whether a reader finds the probe call, as it was given, in what a template wrote."""
    if name in ("bare_json", "marked_list"):
        # What ends the turn follows, and is no part of its text.
        text = text[: max(text.rfind("}"), text.rfind("]")) + 1]
    try:
        written = SYNTAXES[name](text)
    except MalformedCallError:
        return False
    return written is not None and (written.name, dict(written.arguments)) == (PROBE.name, PROBE.arguments)
