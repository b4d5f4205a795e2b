"""What can be known of a run's codec before its inputs are made: whether it opens, and whether an image finds room.

Consumes a spec. Of a given model folder the codec itself is opened; for a model that is yet to be made its tokenizer is
trained on nothing, which frames tools' results as the later one does. Writes nothing; needs no torch.
"""

from __future__ import annotations

import string
from pathlib import Path

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.models.tokenizer import END_ID, train_tokenizer, wrapped_tokenizer
from yatt_core.prompts.codec import PromptCodec, open_codec
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import ModelFolder, ModelFromConfig


def check_codec(spec: RunSpec) -> None:
    """Raises `ConfigurationError` as `open_codec`, and for a folder's model that cannot take a prompt of one image.

    Of a model that is yet to be made the strings of `rollout.stop` stay unchecked: which are tokens follows from its prompts.
    """
    if spec.virtual:
        return
    if isinstance(spec.model, ModelFolder):
        _check_folder(spec, spec.model)
    elif isinstance(spec.model, ModelFromConfig) and spec.rollout.tools is not None:
        _check_own(spec, spec.model)


def _check_folder(spec: RunSpec, model: ModelFolder) -> None:
    codec = open_codec(spec, str(Path(model.path).resolve()))
    if spec.data.has_images:
        try:
            codec.encode_prompt("?", "of one image", images=1)
        except DataError as error:
            raise ConfigurationError(
                f"model.path: {model.path}: data.sources have an image_field, but a {error}"
            ) from None


def _check_own(spec: RunSpec, model: ModelFromConfig) -> None:
    tokenizer = wrapped_tokenizer(train_tokenizer(model.tokenizer, (), [string.printable]), model.max_positions)
    PromptCodec(tokenizer, spec.data.system_prompt, spec.data.max_prompt_tokens, [END_ID], tools=spec.rollout.tools)
