"""A task that is small enough for one core: shapes in colours, 16 x 16, and the rule that says whether an image shows one.

Twelve prompts name one of four colours and one of three shapes. Each has eight templates, which differ in place and size. An
image is valid if it is near any template; its reward is 1 if it is valid and the nearest template is of the kind that was
asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

SIDE = 16
SHAPE = (3, SIDE, SIDE)
COLOURS = {"red": (1, -1, -1), "green": (-1, 1, -1), "blue": (-1, -1, 1), "yellow": (1, 1, -1)}
SHAPES = ("circle", "square", "triangle")
PROMPTS = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
WORDS = (*COLOURS, *SHAPES)
CENTRES = (7, 8)
RADII = (4, 5)
NEAR = 0.1
"""An image whose mean squared distance to a template is below this shows it."""


@dataclass(frozen=True, slots=True)
class ShapeScores:
    """What the rule says of B images.

    rewards: [B], 1 where the image shows what was asked for, else 0.
    valid: [B], True where it shows anything.
    """

    rewards: torch.Tensor
    valid: torch.Tensor


def templates() -> torch.Tensor:
    """Returns the templates, [prompts, 8, 3, 16, 16], from -1 to 1."""
    masks = {shape: [_mask(shape, x, y, r) for x in CENTRES for y in CENTRES for r in RADII] for shape in SHAPES}
    drawn = []
    for prompt in PROMPTS:
        colour, shape = prompt.split()
        paint = torch.tensor(COLOURS[colour], dtype=torch.float32)[:, None, None]
        drawn.append(torch.stack([torch.where(mask, paint, -torch.ones(())) for mask in masks[shape]]))
    return torch.stack(drawn)


def score(images: torch.Tensor, prompts: Sequence[str]) -> ShapeScores:
    """Returns what the rule says of images, [B, 3, 16, 16]; numbers outside -1 .. 1 count as the nearest within."""
    known = templates().flatten(2).double()
    pixels = images.double().clamp(-1, 1).flatten(1)
    # |image - template|^2 by products; in float64, so that what cancels leaves no trace.
    squares = pixels.square().sum(1)[:, None, None] + known.square().sum(2)
    products = (pixels @ known.flatten(0, 1).T).view(-1, *known.shape[:2])
    distances = ((squares - 2 * products) / pixels.shape[1]).amin(2)
    nearest = distances.min(1)
    valid = nearest.values < NEAR
    asked = torch.tensor([PROMPTS.index(prompt) for prompt in prompts])
    return ShapeScores((valid & (nearest.indices == asked)).float(), valid)


def drawn_batch(size: int, wrong: float, generator: torch.Generator) -> tuple[torch.Tensor, list[str]]:
    """Draws images of random prompts, [size, 3, 16, 16], and their captions.

    wrong: share of the captions that are drawn at random, and so leave room for a reward to improve.
    """
    known = templates()
    shown = torch.randint(len(PROMPTS), (size,), generator=generator)
    variants = torch.randint(known.shape[1], (size,), generator=generator)
    others = torch.randint(len(PROMPTS), (size,), generator=generator)
    said = torch.where(torch.rand(size, generator=generator) < wrong, others, shown)
    return known[shown, variants], [PROMPTS[place] for place in said.tolist()]


def _mask(shape: str, x: int, y: int, radius: int) -> torch.Tensor:
    """Returns where a shape is, [16, 16], bool. x, y: the pixel at its centre."""
    down, right = torch.meshgrid(torch.arange(SIDE) - y, torch.arange(SIDE) - x, indexing="ij")
    if shape == "circle":
        return down.square() + right.square() <= radius * radius
    if shape == "square":
        return (right.abs() < radius) & (down.abs() < radius)
    return (down < radius) & (down >= -radius) & (right.abs() * 2 <= down + radius)
