"""Checks what a reward model's folder needs besides weights: a single output, and a format for prompt and response.

Consumes the reward part and its folder. Produces the tokenizer. Reads only small files, so that it can also run
before a run is created.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.models.config_file import CONFIG, read_config
from yatt_core.models.known_tokens import within_rows
from yatt_core.models.model_folder import outputs_of, positions_of
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec.rewards.judges import RewardModelPart


def open_reward_tokenizer(part: RewardModelPart, model_path: str) -> tuple[Any, int]:
    """Returns the tokenizer, and the maximum number of tokens that model and part allow.

    Raises `ConfigurationError` for more than one output, and if neither a template nor the tokenizer defines
    how prompt and response are combined.
    """
    folder = Path(model_path)
    config = read_config(folder)
    outputs = outputs_of(config)
    if outputs != 1:
        found = "invalid labels" if outputs is None else f"{outputs} outputs"
        raise ConfigurationError(
            f"{folder}: the classifier has {found}, but a reward model has one output; expected one entry of "
            f"id2label in {CONFIG}"
        )
    tokenizer = within_rows(load_tokenizer(folder), config, folder)
    if part.template is None and tokenizer.chat_template is None:
        raise ConfigurationError(f"the tokenizer in {folder} has no chat template; set template")
    positions = positions_of(config)
    return tokenizer, part.max_tokens if positions is None else min(part.max_tokens, positions)
