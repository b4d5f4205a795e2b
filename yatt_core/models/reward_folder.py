"""What a reward model's folder has to have, besides weights: one output, and a way from prompt and response to text.

Consumes the reward part and its folder; produces the tokenizer. Reads small files alone, so that it is looked at before a run
is made too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.models.model_folder import CONFIG, outputs_of, positions_of, read_config
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec.rewards.judges import RewardModelPart


def open_reward_tokenizer(part: RewardModelPart, model_path: str) -> tuple[Any, int]:
    """The tokenizer, and the most tokens that model and part take.

    Raises `ConfigurationError` for more outputs than one, and where neither a template nor the tokenizer says how prompt and
    response stand together.
    """
    folder = Path(model_path)
    config = read_config(folder)
    outputs = outputs_of(config)
    if outputs != 1:
        found = "labels that are none" if outputs is None else f"{outputs} outputs"
        raise ConfigurationError(
            f"{folder}: the classifier has {found}, a reward model has one; right would be one entry of id2label in {CONFIG}"
        )
    tokenizer = load_tokenizer(folder)
    if part.template is None and tokenizer.chat_template is None:
        raise ConfigurationError(f"the tokenizer in {folder} has no chat template; write a template")
    positions = positions_of(config)
    return tokenizer, part.max_tokens if positions is None else min(part.max_tokens, positions)
