"""Converts text to tokens and back, for engines and reward functions.

Consumes a model folder's tokenizer, chat template and generation settings. Produces token ids of prompts and
answers, the texts of responses, and the tokens that end a response. Virtual runs have a codec without a model.

Every controller loads a codec, so this module imports only the tokenizer class (in under a second); it loads
the model registry of `transformers` (five seconds, with torch) only for folders without a tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.known_tokens import within_rows
from yatt_core.models.model_folder import positions_of, read_config
from yatt_core.models.reward_text import TEMPLATE_DATE, reward_tokens
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.image_tokens import ImageTokens, image_tokens
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.result_text import (
    ChatMessage,
    ResultEncoder,
    TemplateFrame,
    check_tools_are_shown,
    frame_by_tags,
)
from yatt_core.prompts.token_lists import checked, without_stop
from yatt_core.prompts.virtual_codec import VirtualCodec
from yatt_core.protocols.generation import Int32
from yatt_core.regular_files import read_object
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.rollout import VirtualRollout, no_room
from yatt_core.spec.sections.tools import ToolsSpec
from yatt_core.spec.template import ANSWER, PROMPT, pieces_of


class TextCodec(Protocol):
    """Converts texts to tokens and back.

    stop_tokens: ids that end a response, ascending.
    vocabulary: number of tokens.
    """

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end a response, ascending."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        ...

    def encode_prompt(self, text: str, prompt_id: str = "", images: int = 0, messages: Sequence[Message] = ()) -> Int32:
        """Returns the tokens of a prompt, ready for generation: [length].

        images: number of images in the prompt.
        messages: the conversation of which the text is the transcript; empty for a single question.

        Raises `DataError`, which names the prompt, if it is too long, or if the model or the text has no place
        for its images.
        """
        ...

    def encode_answer(self, text: str) -> Int32:
        """Returns the tokens of a complete response, including the end-of-sequence token: [length]."""
        ...

    def encode_judged(self, template: str | None, prompt: str, response: str) -> Int32:
        """Returns the tokens of a prompt with its response as a reward model reads them: [length].

        template: as in a reward part of kind `reward_model`.

        Raises as `reward_tokens` does.
        """
        ...

    def decode(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the text of a response, or of one of its turns, without its stop token and special tokens."""
        ...

    def encode_result(self, text: str) -> tuple[Int32, str]:
        """Returns the tokens between a turn that calls a tool and the next turn, [length], and the result's text.

        The text is truncated if it is too long.
        """
        ...


class PromptCodec:
    """The codec of a Hugging Face folder; uses the chat template and system prompt if the tokenizer has a template."""

    def __init__(
        self,
        tokenizer: Any,
        system_prompt: str | None,
        longest: int,
        stop_tokens: Sequence[int],
        images: ImageTokens | None = None,
        tools: ToolsSpec | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._images = images
        self._shown_tools = [tool.schema_for_templates for tool in tools.functions if tool.description] if tools else []
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self._longest = longest
        self._stop_tokens = tuple(sorted(set(stop_tokens)))
        if system_prompt is not None:
            self._check_system_prompt(system_prompt)
        self._results = None if tools is None else self._result_encoder(tools)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end a response, ascending."""
        return self._stop_tokens

    @property
    def vocabulary(self) -> int:
        """Number of tokens, including added ones."""
        return len(self._tokenizer)

    @property
    def tokenizer(self) -> Any:
        """The `transformers` tokenizer, for a bound on numbers of tokens."""
        return self._tokenizer

    def whole_text(self, text: str, messages: Sequence[Message] = ()) -> str:
        """Returns the text that `encode_prompt` encodes for a prompt without images. Raises `DataError` as it does."""
        turns = self._turns(text, messages)
        return str(turns[-1]["content"]) if self._tokenizer.chat_template is None else self._rendered(turns)

    def encode_prompt(self, text: str, prompt_id: str = "", images: int = 0, messages: Sequence[Message] = ()) -> Int32:
        """Returns the tokens of a prompt, ready for generation: [length].

        images: number of images in the prompt.
        messages: the conversation of which the text is the transcript; empty for a single question.

        Raises `DataError`, which names the prompt, if it is too long, or if the model or the text has no place
        for its images.
        """
        if self._images is None and images:
            raise DataError(
                f"prompt {prompt_id or repr(text[:60])} contains {images} images, but the model supports text only"
            )
        try:
            turns = self._turns(text, messages)
            tokens = self._encode(turns) if self._images is None else self._encode_with_images(turns, images)
        except DataError as error:
            raise DataError(f"prompt {prompt_id or repr(text[:60])} {error}") from None
        shown = "" if self._images is None or not images else f", {images * self._images.count} for {images} images"
        return checked(tokens, self._longest, prompt_id, text, shown)

    def _turns(self, text: str, messages: Sequence[Message]) -> list[ChatMessage]:
        """Returns what the chat template gets; a system message of the prompt takes the place of the spec's."""
        if not messages:
            return [*self._system, {"role": "user", "content": text}]
        if self._tokenizer.chat_template is None:
            raise DataError("is a conversation, which needs a chat template; the model's tokenizer has none")
        system = [] if messages[0].role == "system" else self._system
        return [*system, *({"role": message.role, "content": message.content} for message in messages)]

    def _encode(self, turns: Sequence[ChatMessage]) -> list[int]:
        if self._tokenizer.chat_template is None:
            return list(self._tokenizer(turns[-1]["content"])["input_ids"])
        return self._encode_bare(self._rendered(turns))

    def _encode_with_images(self, turns: Sequence[ChatMessage], images: int) -> list[int]:
        """Returns the tokens of a prompt for a vision-language model, including image placeholders."""
        assert self._images is not None
        marked = self._images.marked(turns, images)
        if self._tokenizer.chat_template is None:
            plain = self._images.plain(marked[-1]["content"])
            tokens = list(self._tokenizer(self._images.expanded(plain))["input_ids"])
        else:
            shown = self._images.plain if self._takes_text else self._images.parts
            # A system message cannot contain images, and templates expect it as text.
            contents = [turn["content"] if turn["role"] == "system" else shown(turn["content"]) for turn in marked]
            given = [{**turn, "content": content} for turn, content in zip(marked, contents, strict=True)]
            tokens = self._encode_bare(self._images.expanded(self._rendered(given)))
        self._images.check(tokens, images)
        return tokens

    def _rendered(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """Returns the prompt in the chat template. Raises `DataError` for a conversation that it does not support."""
        try:
            rendered = self._render(turns)
        except TemplateError as error:
            raise DataError(f"is rejected by the model's chat template: {error}") from None
        if turns[0]["role"] == "system" and turns[0]["content"].strip() not in rendered:
            raise DataError("has a system message, which the model's chat template ignores")
        return rendered

    @cached_property
    def _takes_text(self) -> bool:
        """False if the chat template expects images and texts as separate parts and drops plain text."""
        return "?" in self._render([{"role": "user", "content": "?"}])

    def encode_answer(self, text: str) -> Int32:
        """Returns the tokens of a complete response, including the end-of-sequence token: [length]."""
        return np.array([*self._encode_bare(text), self._tokenizer.eos_token_id], dtype=np.int32)

    def encode_judged(self, template: str | None, prompt: str, response: str) -> Int32:
        """Returns the tokens of a prompt with its response as a reward model reads them: [length].

        template: as in a reward part of kind `reward_model`.

        Raises as `reward_tokens` does, and `ConfigurationError` if there is neither kind of template.
        """
        if template is None and self._tokenizer.chat_template is None:
            raise ConfigurationError("objective.template: required, because the model's tokenizer has no chat template")
        return np.array(reward_tokens(self._tokenizer, template, prompt, response), dtype=np.int32)

    def decode(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the text of a response without its stop token and special tokens."""
        ids = without_stop(tokens, self._stop_tokens)
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def encode_result(self, text: str) -> tuple[Int32, str]:
        """Encodes a tool result as the protocol requires, framed by the chat template, or by tags if there is none."""
        if self._results is None:
            raise ConfigurationError("rollout.tools: tool results cannot be encoded, because the spec has no tools")
        return self._results(text)

    def _encode_bare(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=True,
                tools=self._shown_tools or None,
                date_string=TEMPLATE_DATE,
                strftime_now=lambda _: TEMPLATE_DATE,
            )
        )

    def _result_encoder(self, tools: ToolsSpec) -> ResultEncoder:
        has_template = self._tokenizer.chat_template is not None
        frame = TemplateFrame(self._render, self._system) if has_template else frame_by_tags
        if self._shown_tools:
            check_tools_are_shown(self._tokenizer.chat_template, self._render, self._system, tools)
        return ResultEncoder(self._encode_bare, frame, self._stop_tokens, tools.max_result_tokens)

    def _check_system_prompt(self, system_prompt: str) -> None:
        """Raises `ConfigurationError` if the system prompt would be dropped silently."""
        if self._tokenizer.chat_template is None:
            raise ConfigurationError(
                "data.system_prompt: not supported, because the model's tokenizer has no chat template; leave it out"
            )
        try:
            rendered = self._render([*self._system, {"role": "user", "content": "?"}])
        except TemplateError as error:
            raise ConfigurationError(f"data.system_prompt: the model's chat template rejects it: {error}") from None
        if system_prompt.strip() not in rendered:
            raise ConfigurationError(
                "data.system_prompt: the model's chat template ignores system messages; leave it out"
            )


def encode_question(prompt: Prompt, codec: TextCodec) -> Int32:
    """Returns the tokens of a prompt, ready for generation: [length]. Raises as `TextCodec.encode_prompt` does."""
    return codec.encode_prompt(prompt.text, prompt.prompt_id, len(prompt.media), prompt.messages)


def encode_privileged(prompt: Prompt, template: str, codec: TextCodec) -> Int32:
    """Returns the tokens of a prompt that shows its reference answer: [length].

    template: of `PrivilegedSpec`; in a conversation it takes the place of the last message.

    Raises as `TextCodec.encode_prompt` does, and `DataError` for a prompt without a reference answer.
    """
    if prompt.answer is None:
        raise DataError(
            f"prompt {prompt.prompt_id}: has no reference answer, which self-distillation shows the teacher"
        )
    last = prompt.messages[-1].content if prompt.messages else prompt.text
    values = {PROMPT: last, ANSWER: prompt.answer}
    text = "".join(part + ("" if name is None else values[name]) for part, name in pieces_of(template))
    messages = [*prompt.messages[:-1], Message(prompt.messages[-1].role, text)] if prompt.messages else ()
    return codec.encode_prompt(text, prompt.prompt_id, 0, messages)


def open_codec(spec: RunSpec, model_path: str, roomless: bool = False) -> TextCodec:
    """Returns the codec of a run.

    model_path: the run's Hugging Face folder; unused in a virtual run.
    roomless: whether a spec that leaves no room for a prompt is accepted; every prompt is then too long.

    Raises `ConfigurationError` if the tokenizer cannot be loaded or has no end-of-sequence token, if stop
    strings are not single tokens, or if the chat template does not support the system prompt or tool messages.
    """
    if isinstance(spec.rollout.engine, VirtualRollout):
        engine = spec.rollout.engine
        return VirtualCodec(
            engine.vocabulary, spec.data.max_prompt_tokens, spec.rollout.tools, engine.tool_call_fraction
        )
    folder = Path(model_path)
    config = read_config(folder)
    tokenizer = within_rows(load_tokenizer(folder), config, folder)
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(f"model: the tokenizer in {folder} has no end-of-sequence token")
    stop = [tokenizer.eos_token_id, *generation_stops(folder, config)]
    stop += [_single_token(tokenizer, text) for text in spec.rollout.stop]
    images, longest = image_tokens(config, tokenizer), longest_prompt(spec, model_path, roomless)
    return PromptCodec(tokenizer, spec.data.system_prompt, longest, stop, images, spec.rollout.tools)


def longest_prompt(spec: RunSpec, model_path: str, roomless: bool = False) -> int:
    """Returns the maximum number of prompt tokens that the spec allows and that leaves room for the response.

    model_path, roomless: as for `open_codec`.

    Raises `ConfigurationError` if there is no room for a prompt.
    """
    known = positions(spec, model_path)
    if known is None:
        return spec.data.max_prompt_tokens
    room = known - spec.rollout.max_response_tokens
    if room < 1 and not roomless:
        raise ConfigurationError(
            no_room(spec.rollout, spec.data.max_prompt_tokens, known, f"the model's {known} positions")
        )
    return max(0, min(spec.data.max_prompt_tokens, room))


def positions(spec: RunSpec, model_path: str) -> int | None:
    """Returns the maximum number of tokens of prompt and response together; None if the model does not limit it.

    model_path: as for `open_codec`.
    """
    return None if spec.virtual else positions_of(read_config(Path(model_path)))


def generation_stops(folder: Path, config: dict[str, Any]) -> list[int]:
    """Returns the end-of-sequence tokens of generation_config.json, or of config.json if it does not exist."""
    path = folder / "generation_config.json"
    settings = read_object(path, "model") if path.is_file() else config
    stops = settings.get("eos_token_id")
    return [] if stops is None else [stops] if isinstance(stops, int) else list(stops)


def _single_token(tokenizer: Any, text: str) -> int:
    """Returns the id of a stop string."""
    try:
        tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    except DataError as error:
        raise ConfigurationError(f"rollout.stop: {text!r} {error}; leave it out") from None
    if len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id:
        made = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(tokens)))
        raise ConfigurationError(
            f"rollout.stop: {text!r} is not a single token of the model (it becomes {made or 'nothing'}); "
            "use a string that is a single token, or leave it out"
        )
    return tokens[0]
