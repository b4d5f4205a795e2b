"""Opens a run's codec, which converts text to tokens and back for engines and reward functions.

Consumes a spec, and a model folder's tokenizer, chat template and generation settings. Produces a `TextCodec`. Virtual
runs have a codec without a model.

Every controller loads a codec, so this module imports only the tokenizer class (in under a second); it loads
the model registry of `transformers` (five seconds, with torch) only for folders without a tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.config_file import read_config
from yatt_core.models.known_tokens import within_rows
from yatt_core.models.model_folder import positions_of
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.image_tokens import image_tokens
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.prompt_codec import CodecSettings, PromptCodec
from yatt_core.prompts.text_codec import TextCodec
from yatt_core.prompts.thoughts import Marks
from yatt_core.prompts.virtual_codec import VirtualCodec
from yatt_core.protocols.generation import Int32
from yatt_core.regular_files import read_object
from yatt_core.spec.rewards.scheme import RewardSpec
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.rollout import VirtualRollout, no_room
from yatt_core.spec.template import ANSWER, PROMPT, pieces_of

__all__ = [
    "TextCodec",
    "codec_settings",
    "encode_privileged",
    "encode_question",
    "generation_stops",
    "longest_prompt",
    "open_codec",
    "positions",
]


def encode_question(prompt: Prompt, codec: TextCodec) -> Int32:
    """Returns the tokens of a prompt, ready for generation: [length]. Raises as `TextCodec.encode_prompt` does."""
    return codec.encode_prompt(prompt)


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
    messages = (*prompt.messages[:-1], replace(prompt.messages[-1], content=text)) if prompt.messages else ()
    return codec.encode_prompt(replace(prompt, text=text, messages=messages))


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
    return PromptCodec(
        tokenizer=tokenizer,
        settings=codec_settings(spec),
        longest=longest_prompt(spec, model_path, roomless),
        stop_tokens=stop,
        images=image_tokens(config, tokenizer),
        tools=spec.rollout.tools,
    )


def codec_settings(spec: RunSpec) -> CodecSettings:
    """Returns what a spec says about the texts of a run."""
    given = spec.rollout.thoughts
    return CodecSettings(
        system_prompt=spec.data.system_prompt,
        variables=spec.data.chat_template_kwargs,
        thoughts=None if given is None else Marks(given.begin, given.end),
        tags=tuple(_tags(spec.rewards)),
    )


def _tags(rewards: RewardSpec) -> Iterator[str]:
    """Yields the tags that reward functions look for by their options."""
    for part in rewards.functions:
        named = part.options.get("tags")
        names = [*named] if isinstance(named, list) else []
        names.append(part.options.get("tag", "answer"))
        for name in names:
            yield f"<{name}>"
            yield f"</{name}>"


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
