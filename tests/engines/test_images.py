"""The way from an image's address to a prompt's embeddings: the generated folder, the reader, the placement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from tests.engines.pictures import make_vision_folder, store_pictures
from yatt_core.engines.images import ImageReader, ShownPrompts, embed_prompts
from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import load_causal_lm
from yatt_core.models.model_folder import make_model
from yatt_core.prompts.image_tokens import image_tokens
from yatt_core.spec.sections.model import ModelFromConfig, VisionSpec

MODEL = ModelFromConfig(hidden_size=16, heads=2, key_value_heads=1, intermediate_size=24, vision=VisionSpec())


class Tokenizer:
    """A tokenizer that knows the placeholder."""

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"<{token}>"


def test_the_same_spec_makes_the_same_folder(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        (tmp_path / name).mkdir()
        make_model(MODEL, 12, seed, tmp_path / name)
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"]
    assert contents[0] == contents[1]
    assert contents[0]["model.safetensors"] != contents[2]["model.safetensors"]
    assert json.loads(contents[0]["preprocessor_config.json"])["size"] == {"height": 32, "width": 32}
    model: Any = load_causal_lm(str(tmp_path / "a"), "float32")
    assert model.lm_head.weight is model.get_input_embeddings().weight, "tied"
    pixels = ImageReader(str(tmp_path / "a"), tmp_path).pixels(store_pictures(tmp_path, 3))
    assert pixels.shape == (3, 3, 32, 32) and -1 <= pixels.min() < -0.5 < 0.5 < pixels.max() <= 1


def make_clip_folder(folder: Path, strategy: str) -> Path:
    """Writes a folder in the family's original form: CLIP, Llama, features of the last block but one."""
    torch.manual_seed(0)
    tower = CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = LlamaConfig(vocab_size=12, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    config = LlavaConfig(
        vision_config=tower, text_config=text, image_token_index=11, vision_feature_select_strategy=strategy
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    size = {"height": 28, "width": 28}
    CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=size).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["siglip", "default", "full"])
def test_a_prompt_has_as_many_placeholders_as_the_tower_gives_patches(tmp_path: Path, kind: str) -> None:
    folder = make_vision_folder(tmp_path) if kind == "siglip" else make_clip_folder(tmp_path, kind)
    images = image_tokens(json.loads((folder / "config.json").read_text()), Tokenizer())
    assert images is not None and images.count == {"siglip": 9, "default": 4, "full": 5}[kind]
    model = load_causal_lm(str(folder), "float32")
    tokens = torch.full((1, images.count + 2), images.token)
    tokens[0, [0, -1]] = 3
    shown = ShownPrompts(torch.tensor([tokens.shape[1]]), [store_pictures(tmp_path, 1)], ["it"])
    embeddings = embed_prompts(model, ImageReader(str(folder), tmp_path), tokens, shown)
    plain: Any = model.get_input_embeddings()(tokens)  # type: ignore[operator]
    differs = (embeddings != plain).any(dim=2)[0].tolist()
    assert differs == [False, *[True] * images.count, False]


def test_an_image_shown_by_many_prompts_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_vision_folder(tmp_path)
    addresses = store_pictures(tmp_path, 2)
    model = load_causal_lm(str(folder), "float32")
    reader = ImageReader(str(folder), tmp_path)
    read: list[str] = []
    pixels = reader.pixels
    monkeypatch.setattr(reader, "pixels", lambda wanted: read.extend(wanted) or pixels(wanted))
    media = [addresses[:1]] * 5 + [addresses[1:]] * 5
    shown = ShownPrompts(torch.full((10,), 9), media, [""] * 10)
    embeddings = embed_prompts(model, reader, torch.full((10, 9), 40), shown).detach().numpy()
    assert sorted(read) == sorted(addresses)
    np.testing.assert_array_equal(embeddings[0], embeddings[4])
    assert not np.array_equal(embeddings[4], embeddings[5])


def test_a_folder_without_an_image_processor_is_refused(tmp_path: Path) -> None:
    folder = make_vision_folder(tmp_path)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigurationError, match=f"^{folder}: .*image processor"):
        ImageReader(str(folder), tmp_path)
