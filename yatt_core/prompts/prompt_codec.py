"""The codec of a Hugging Face folder: implements `TextCodec` with the folder's tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jinja2 import TemplateError

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.reward_text import reward_tokens
from yatt_core.prompts.call_syntaxes import DEFAULT, MARKS
from yatt_core.prompts.chat_template import ChatTemplate, Tools
from yatt_core.prompts.control_text import control_text
from yatt_core.prompts.image_tokens import ImageTokens
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.replies import EncodedReply, ReplyEncoder, rejected
from yatt_core.prompts.result_text import (
    UNREAD_FORM,
    ResultEncoder,
    TagFrame,
    TemplateFrame,
    check_tools_are_shown,
    unread_calls,
)
from yatt_core.prompts.thoughts import THINK, Marks, marks_of_template
from yatt_core.prompts.token_lists import checked, decoded, dropped_tokens, without_stop
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.protocols.generation import Int32
from yatt_core.spec.sections.tools import ToolsSpec


@dataclass(frozen=True, slots=True)
class CodecSettings:
    """What a spec says about the texts of a run.

    system_prompt: system message of prompts that have none of their own.
    variables: variables of the chat template.
    thoughts: what thoughts begin and end with; None: what the chat template writes.
    tags: strings that responses are read by; they survive decoding although they may be special tokens.
    """

    system_prompt: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    thoughts: Marks | None = None
    tags: tuple[str, ...] = ()


class PromptCodec:
    """The codec of a Hugging Face folder; uses the chat template and system prompt if the tokenizer has a template."""

    def __init__(
        self,
        tokenizer: Any,
        settings: CodecSettings,
        longest: int,
        stop_tokens: Sequence[int],
        images: ImageTokens | None = None,
        tools: ToolsSpec | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self._settings = settings
        self._shown_tools = [tool.schema_for_templates for tool in tools.functions if tool.description] if tools else []
        self._longest = longest
        system = settings.system_prompt
        self._system = [] if system is None else [Message("system", system)]
        marks = settings.thoughts or marks_of_template(str(tokenizer.chat_template or ""))
        self._control = control_text(tokenizer, marks, images)
        self._template: ChatTemplate | None = None
        if tokenizer.chat_template is not None:
            self._template = ChatTemplate(
                tokenizer=tokenizer,
                control=self._control,
                marks=marks,
                variables=settings.variables,
                system=system,
            )
        self._stop_tokens = tuple(sorted(set(stop_tokens)))
        if system is not None:
            self._check_system_prompt(system)
        self._reading = self._how_turns_are_read(tools)
        self._stop_tokens = tuple(sorted({*self._stop_tokens, *self._ends_of_turns(tools is not None)}))
        self._dropped = dropped_tokens(tokenizer, self._kept(tools))
        self._results = None if tools is None else self._result_encoder(tools)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end a response, ascending."""
        return self._stop_tokens

    @property
    def reading(self) -> Reading:
        """How the turns of the model are read."""
        return self._reading

    @property
    def tokenizer(self) -> Any:
        """The `transformers` tokenizer, for a bound on numbers of tokens."""
        return self._tokenizer

    @property
    def missing_opening(self) -> str:
        """What the chat template writes before an assistant's text, but not at the end of a prompt; empty if nothing."""
        try:
            return "" if self._template is None else self._template.missing_opening
        except TemplateError:
            return ""  # a template that rejects the shortest conversation is reported with the first prompt

    def unread_calls(self, texts: Iterable[str]) -> str:
        """Returns why the calls of the spec's tools cannot be read; empty if they can.

        texts: of prompts and answers, which may tell the form of a call.
        """
        if self._template is None or self._results is None:
            return ""
        return unread_calls(self._template, self._shown_tools, self._system, texts)

    def encode_prompt(self, prompt: Prompt) -> Int32:
        """Encodes a prompt as the protocol requires."""
        images = len(prompt.media)
        named = f"prompt {prompt.prompt_id or repr(prompt.text[:60])}"
        if self._images is None and images:
            raise DataError(f"{named} contains {images} images, but the model supports text only")
        try:
            if prompt.rendered:
                tokens = self._control.encode(prompt.text)
            elif self._images is None:
                tokens = self._encode(prompt)
            else:
                tokens = self._encode_with_images(prompt, self._images)
        except DataError as error:
            raise DataError(f"{named} {error}") from None
        shown = "" if self._images is None or not images else f", {images * self._images.count} for {images} images"
        return checked(tokens=tokens, longest=self._longest, prompt_id=prompt.prompt_id, text=prompt.text, shown=shown)

    def shown(self, prompt: Prompt) -> str:
        """Returns a prompt as the model reads it, without images. Raises `DataError` as `encode_prompt` does."""
        if prompt.rendered:
            return prompt.text
        turns = self._turns(prompt)
        if self._template is None:
            return prompt.text
        return self._control.without_marks(self._rendered(turns, self._tools_of(prompt, self._template)))

    def encode_answer(self, text: str) -> Int32:
        """Returns the tokens of a text as the policy may write it, including the end-of-sequence token: [length]."""
        return np.array([*self._encode_bare(text), self._tokenizer.eos_token_id], dtype=np.int32)

    def encode_reply(self, prompt: Prompt, reply: Sequence[Message]) -> EncodedReply:
        """Encodes a reply as the protocol requires; without a chat template, the text of an answer and its end."""
        try:
            if self._template is None or prompt.rendered or prompt.is_text_alone:
                return self._plain_reply(prompt, reply)
            return self._replies(self._turns(prompt), reply, self._tools_of(prompt, self._template))
        except DataError as error:
            raise DataError(f"prompt {prompt.prompt_id} {error}") from None
        except TemplateError as error:
            raise DataError(f"prompt {prompt.prompt_id} {rejected(error)}") from None

    def encode_judged(self, template: str | None, prompt: Prompt, reply: Sequence[Message]) -> Int32:
        """Returns the tokens of a prompt with its response as a reward model reads them: [length].

        template: as in a reward part of kind `reward_model`.

        Raises as `reward_tokens` does, and `ConfigurationError` if there is neither kind of template.
        """
        if template is None and self._tokenizer.chat_template is None:
            raise ConfigurationError("objective.template: required, because the model's tokenizer has no chat template")
        tokens = reward_tokens(
            tokenizer=self._tokenizer,
            control=self._control,
            template=template,
            prompt=prompt.text,
            messages=[(message.role, message.content) for message in prompt.messages],
            reply=[(message.role, message.content) for message in reply],
        )
        return np.array(tokens, dtype=np.int32)

    def decode(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the text of tokens that the policy generated, without its stop token and special tokens."""
        return decoded(self._tokenizer, without_stop(tokens, self._stop_tokens), self._dropped)

    def decode_turn(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the text of a turn: that of its tokens, behind what the chat template wrote at its beginning."""
        return (self._reading.prefill or "") + self.decode(tokens)

    def encode_result(self, text: str, call: ToolCall | None = None) -> tuple[Int32, str]:
        """Encodes a tool result as the protocol requires, framed by the chat template, or by tags if there is none."""
        if self._results is None:
            raise ConfigurationError("rollout.tools: tool results cannot be encoded, because the spec has no tools")
        return self._results(text, call)

    def _turns(self, prompt: Prompt) -> list[Message]:
        """Returns what the chat template gets; a system message of the prompt takes the place of the spec's."""
        if not prompt.messages:
            return [*self._system, Message("user", prompt.text)]
        if self._template is None:
            raise DataError("is a conversation, which needs a chat template; the model's tokenizer has none")
        system = [] if prompt.messages[0].role == "system" else self._system
        return [*system, *prompt.messages]

    def _tools_of(self, prompt: Prompt, template: ChatTemplate) -> Tools:
        """Returns the descriptions of the tools that a prompt brings, or else of those of the spec, which are trusted."""
        return template.guarded_tools(prompt.tools) or self._shown_tools

    def _encode(self, prompt: Prompt) -> list[int]:
        turns = self._turns(prompt)
        if self._template is None:
            return self._control.encode_alone(prompt.text)
        return self._control.encode(self._rendered(turns, self._tools_of(prompt, self._template)))

    def _encode_with_images(self, prompt: Prompt, images: ImageTokens) -> list[int]:
        """Returns the tokens of a prompt for a vision-language model, including image placeholders."""
        marked = images.marked(self._turns(prompt), len(prompt.media))
        if self._template is None:
            plain = images.plain(marked[-1].content)
            tokens = list(self._tokenizer(images.expanded(plain))["input_ids"])
        else:
            shown = images.plain if self._template.takes_text else images.parts
            rendered = self._rendered(marked, self._tools_of(prompt, self._template), shown)
            tokens = self._control.encode(images.expanded(rendered))
        images.check(tokens, len(prompt.media))
        return tokens

    def _rendered(self, turns: Sequence[Message], tools: Tools, shown: Callable[[str], Any] | None = None) -> str:
        """Returns the prompt in the chat template. Raises `DataError` for a conversation that it does not support."""
        assert self._template is not None
        try:
            rendered = self._template.render(turns, tools, shown=shown)
        except TemplateError as error:
            raise rejected(error) from None
        return self._checked_system(turns, rendered)

    def _checked_system(self, turns: Sequence[Message], rendered: str) -> str:
        shown = self._control.without_marks(rendered)
        if turns[0].role == "system" and turns[0].content.strip() not in shown:
            raise DataError("has a system message, which the model's chat template ignores")
        return rendered

    @cached_property
    def _replies(self) -> ReplyEncoder:
        assert self._template is not None
        return ReplyEncoder(self._template, self._control, self._stop_tokens, self._tokenizer.eos_token_id)

    def _plain_reply(self, prompt: Prompt, reply: Sequence[Message]) -> EncodedReply:
        """Returns the tokens of a text and of its end, without a chat template."""
        if len(reply) != 1 or reply[0].calls:
            raise DataError(
                "has a reply of several messages, which needs a chat template; the model's tokenizer has none"
            )
        text = reply[0].content
        if prompt.is_text_alone and not prompt.rendered:
            tokens = self._control.encode_alone(text)
        else:
            guarded = text if prompt.rendered else self._control.guard_special(text)
            tokens = self._control.encode(guarded, goes_on=True)
        if not tokens or tokens[-1] not in self._stop_tokens:  # a rendered text may have the mark of its end
            tokens.append(self._tokenizer.eos_token_id)
        return EncodedReply(np.array(tokens, dtype=np.int32), np.ones(len(tokens), dtype=np.bool_))

    def _encode_bare(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _how_turns_are_read(self, tools: ToolsSpec | None) -> Reading:
        if self._template is None:
            return Reading(self._settings.thoughts or THINK, "")
        syntax = DEFAULT
        if tools is not None:
            form = self._template.calls
            if form is None:
                raise ConfigurationError(f"rollout.tools: {UNREAD_FORM}")
            syntax = form.syntax or DEFAULT
        try:
            prefill = self._template.prefill
        except TemplateError:
            prefill = ""  # a template that rejects the shortest conversation is reported with the first prompt
        texts = tuple(tools.text_parameters) if tools is not None else ()
        return Reading(self._template.marks, prefill, syntax, texts)

    def _ends_of_turns(self, with_tools: bool) -> Iterable[int]:
        """Yields the token with which the chat template ends the assistant's turns, if none that ends responses does."""
        if self._template is None:
            return
        try:
            behind = self._template.end
            if behind and not set(behind) & set(self._stop_tokens):
                yield behind[0]
            if with_tools and self._template.calls is not None and self._template.calls.syntax:
                call_end = self._template.end_of_call(self._stop_tokens)
                if call_end is not None:
                    yield call_end
        except TemplateError:
            return  # a template that rejects the shortest conversation is reported with the first prompt

    def _kept(self, tools: ToolsSpec | None) -> set[str]:
        """Returns the special tokens that are part of a response's text."""
        kept = {*self._settings.tags, *self._reading.marks.spellings}
        if tools is not None:
            kept.update(MARKS[self._reading.syntax])
        return kept

    def _result_encoder(self, tools: ToolsSpec) -> ResultEncoder:
        if self._template is None:
            return ResultEncoder(TagFrame(self._control), tools.max_result_tokens)
        if self._shown_tools:
            check_tools_are_shown(self._template, self._shown_tools, self._system, tools)
        frame = TemplateFrame(
            template=self._template,
            control=self._control,
            stop_tokens=self._stop_tokens,
            system=self._system,
            tools=self._shown_tools,
        )
        return ResultEncoder(frame, tools.max_result_tokens)

    def _check_system_prompt(self, system_prompt: str) -> None:
        """Raises `ConfigurationError` if the system prompt would be dropped silently."""
        if self._template is None:
            raise ConfigurationError(
                "data.system_prompt: not supported, because the model's tokenizer has no chat template; leave it out"
            )
        try:
            rendered = self._template.render([*self._system, Message("user", "?")], self._shown_tools)
        except TemplateError as error:
            raise ConfigurationError(f"data.system_prompt: the model's chat template rejects it: {error}") from None
        if system_prompt.strip() not in self._control.without_marks(rendered):
            raise ConfigurationError(
                "data.system_prompt: the model's chat template ignores system messages; leave it out"
            )
