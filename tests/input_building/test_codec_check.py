"""Mistakes that concern a run's codec are found from its spec and model folder, before anything is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inputs.example_specs import SPELL, VIRTUAL, run_spec
from tests.prompts.test_image_tokens import PROMPTS, write_config
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.codec_check import check_codec
from yatt_core.models.tokenizer import save_tokenizer, train_tokenizer
from yatt_core.spec.sections.model import TokenizerSpec

CALCULATOR = {"name": "calculator", "function": "calculator"}
TOWER = {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8}
PICTURES = {"kind": "jsonl", "path": "pictures.jsonl", "image_field": "image"}


def with_tools(**tools: Any) -> dict[str, Any]:
    return {"max_new_tokens": 6, "tools": {"functions": [CALCULATOR], "max_turns": 2, "max_result_tokens": 16, **tools}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Writes a vision-language folder without weights: 64 positions, images of 4 tokens."""
    save_tokenizer(train_tokenizer(TokenizerSpec(), PROMPTS, [], with_images=True), tmp_path, 64)
    return write_config(tmp_path)


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        (
            {"max_result_tokens": 1},
            r"rollout\.tools\.max_result_tokens: 1 .*2 tokens .*at least 2",
        ),
        (
            {"functions": [{**CALCULATOR, "description": "adds"}]},
            "'calculator': .*chat template.*data.system_prompt",
        ),
    ],
)
@pytest.mark.parametrize("given", [False, True], ids=["from-config", "folder"])
def test_tools_that_a_chat_template_has_no_place_for(folder: Path, given: bool, tools: dict, says: str) -> None:
    model = {"model": {"kind": "folder", "path": str(folder)}} if given else {}
    with pytest.raises(ConfigurationError, match=says):
        check_codec(run_spec(SPELL, rollout=with_tools(**tools), **model))
    check_codec(run_spec(SPELL, rollout=with_tools(max_result_tokens=2), **model))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"vision_config": {**TOWER, "image_size": 64}}, "of one image has 66 tokens, 64 for 1 images; at most 58 fit"),
        ({"model_type": "qwen2", "vision_config": None}, "of one image .*1 images"),
    ],
)
def test_images_that_a_folders_model_cannot_take(folder: Path, config: dict, says: str) -> None:
    spec = run_spec(PICTURES, model={"kind": "folder", "path": str(folder)})
    check_codec(spec)
    changed = {**json.loads((folder / "config.json").read_text()), **config}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
    with pytest.raises(ConfigurationError, match=rf"model\.path: .*data\.sources .*image_field, but a prompt {says}"):
        check_codec(spec)


def test_a_virtual_run_has_no_codec_to_check() -> None:
    check_codec(run_spec(SPELL, **VIRTUAL))
