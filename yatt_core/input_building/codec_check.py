"""Checks a run's codec before its inputs are built: whether it can be opened, and whether an image fits.

Consumes a spec. For a given model folder, the actual codec is opened. For a model that is yet to be created, a
tokenizer is trained without prompts; it frames tool results in the same way as the final tokenizer. Writes nothing and
does not need torch.
"""

from __future__ import annotations

import string
from pathlib import Path

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.known_tokens import ROWLESS
from yatt_core.models.tokenizer import END_ID, train_tokenizer, wrapped_tokenizer
from yatt_core.prompts.codec import TextCodec, codec_settings, open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import GivenFolder, ModelFromConfig


def check_codec(spec: RunSpec) -> None:
    """Raises `ConfigurationError` as `open_codec` does, and if a given model cannot take a prompt with one image.

    For a model that is yet to be created, the strings of `rollout.stop` are not checked: which of them are
    single tokens depends on the prompts.
    """
    if spec.virtual:
        return
    if isinstance(spec.model, GivenFolder):
        _check_folder(spec, spec.model)
    elif isinstance(spec.model, ModelFromConfig) and spec.rollout.tools is not None:
        _check_own(spec, spec.model)


def _check_folder(spec: RunSpec, model: GivenFolder) -> None:
    # Whether prompts fit is checked with the prompts, which tells by how much they do not.
    codec = open_codec(spec, str(Path(model.path).resolve()), roomless=spec.data.over_long == "refuse")
    _check_frame(model, codec)
    if spec.data.has_images:
        try:
            codec.encode_prompt(
                Prompt(source=0, index=0, prompt_id="of one image", text="?", answer=None, entry={}, media=("",))
            )
        except DataError as error:
            raise ConfigurationError(
                f"model.path: {model.path}: data.sources have an image_field, but a {error}"
            ) from None


def _check_frame(model: GivenFolder, codec: TextCodec) -> None:
    """Raises `ConfigurationError` if the chat template itself makes a token that the model cannot read."""
    try:
        codec.encode_prompt(Prompt(source=0, index=0, prompt_id="?", text="?", answer=None, entry={}))
    except DataError as error:  # what else is wrong with a prompt is told with the prompts
        if ROWLESS in str(error):
            said = str(error).removeprefix("prompt ? ")
            raise ConfigurationError(
                f"model.path: {model.path}: its chat template, for the prompt '?', {said}"
            ) from None


def _check_own(spec: RunSpec, model: ModelFromConfig) -> None:
    tokenizer = wrapped_tokenizer(train_tokenizer(model.tokenizer, (), [string.printable]), model.max_positions)
    PromptCodec(
        tokenizer=tokenizer,
        settings=codec_settings(spec),
        longest=spec.data.max_prompt_tokens,
        stop_tokens=[END_ID],
        tools=spec.rollout.tools,
    )
