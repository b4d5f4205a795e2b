"""The task of shapes: its rule, its data, and prompts as words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.workloads.diffusion.conditions import VECTORS, load_words, make_words, save_words
from yatt_core.workloads.diffusion.shapes import PROMPTS, WORDS, drawn_batch, score, templates


def test_an_image_is_right_if_it_is_near_a_template_of_what_was_asked() -> None:
    known = templates()
    generator = torch.Generator().manual_seed(1)
    for variant in range(known.shape[1]):
        images = known[:, variant]
        noisy = images + 0.2 * torch.randn(images.shape, generator=generator)
        assert score(noisy, PROMPTS).rewards.tolist() == [1.0] * len(PROMPTS)
        others = score(noisy, PROMPTS[1:] + PROMPTS[:1])
        assert others.rewards.sum() == 0 and bool(others.valid.all())
    nothing = score(torch.zeros_like(known[:, 0]), PROMPTS)
    assert nothing.rewards.sum() == 0 and not bool(nothing.valid.any())


def test_templates_of_different_prompts_are_different_images() -> None:
    flat = templates().flatten(2).flatten(0, 1)
    assert len(torch.unique(flat, dim=0)) == len(flat) == 12 * 8


def test_the_stated_share_of_captions_is_wrong() -> None:
    generator = torch.Generator().manual_seed(1)
    images, captions = drawn_batch(2000, 0.25, generator)
    right = score(images, captions).rewards.mean().item()
    assert right == pytest.approx(1 - 0.25 * 11 / 12, abs=0.03)
    assert score(*drawn_batch(100, 0.0, generator)).rewards.mean() == 1


def test_a_prompt_is_its_words_in_order() -> None:
    words = make_words(WORDS, width=8, longest=3, seed=1)
    told = words.encode(["red circle", "circle red", "blue"])
    assert told.words.shape == (3, 3, 8) and torch.equal(told.pooled[0], told.pooled[1])
    assert torch.equal(told.words[0, 0], told.words[1, 1]) and not told.words[2, 1:].any()
    products = words.vectors @ words.vectors.T
    assert torch.allclose(products, 16 * torch.eye(7), atol=1e-4)


@pytest.mark.parametrize("prompt", ["red hexagon", "", "red red red red"])
def test_a_prompt_that_is_not_known_is_refused(prompt: str) -> None:
    with pytest.raises(DataError, match="prompt"):
        make_words(WORDS, width=8, longest=3, seed=1).encode([prompt])


def test_words_are_kept_in_a_folder(tmp_path: Path) -> None:
    words = make_words(WORDS, width=8, longest=2, seed=1)
    save_words(words, tmp_path)
    again = load_words(tmp_path)
    assert (again.words, again.longest) == (words.words, 2) and torch.equal(again.vectors, words.vectors)
    (tmp_path / VECTORS).write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_words(tmp_path)
