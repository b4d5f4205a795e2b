"""A dataset of drawn shapes to count: PNG files and JSON Lines, for runs of vision-language models.

`python -m examples.shapes FOLDER` creates it: `train.jsonl`, `held-out.jsonl` and `images/`. A row has `prompt`,
`answer` and `image` (a path relative to the row's file). A picture has a grid of cells, each empty or with a circle,
square or triangle in one of four colours, of any size and at any place within its cell; the prompt asks how many shapes
there are. All answers are equally frequent, so a guess made without looking is right one time in nine. The same
arguments draw the same pictures.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw

from yatt_core.keys import stable_seed

SIZE = 32
CELLS = 4
"""Pixels of a picture's side, and cells along it."""
COLOURS = ((220, 40, 40), (40, 180, 60), (50, 80, 220), (230, 210, 40))
GROUND = (128, 128, 128)
KINDS = ("circle", "square", "triangle")
QUESTION = "How many shapes are there?"
LARGEST = 9
"""Answers range from 1 to this number."""


def write_shapes(folder: Path, train: int, held_out: int, seed: int = 0) -> None:
    """Writes the given numbers of training and held-out rows, and their pictures; existing files are overwritten."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for split, size in (("train", train), ("held-out", held_out)):
        rows = _rows(folder, split, size, seed)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")


def _rows(folder: Path, split: str, size: int, seed: int) -> Iterator[dict[str, str]]:
    """Yields the rows of a split, in an order that mixes the answers, and draws the picture of each."""
    answers = [number % LARGEST + 1 for number in range(size)]
    random.Random(stable_seed(f"shapes/{split}", seed)).shuffle(answers)
    for number, answer in enumerate(answers):
        noise = random.Random(stable_seed(f"shapes/{split}", seed, number))
        name = f"images/{split}-{number:05d}.png"
        draw_shapes(noise, answer).save(folder / name)
        yield {"prompt": QUESTION, "answer": str(answer), "image": name}


def draw_shapes(noise: random.Random, count: int) -> Image.Image:
    """Returns a picture with `count` shapes."""
    image = Image.new("RGB", (SIZE, SIZE), GROUND)
    canvas = ImageDraw.Draw(image)
    cells = list(range(CELLS * CELLS))
    noise.shuffle(cells)
    for cell in cells[:count]:
        _draw_shape(canvas, noise, cell)
    return image


def _draw_shape(canvas: ImageDraw.ImageDraw, noise: random.Random, cell: int) -> None:
    """Draws one shape of any kind, colour, size and place within its cell."""
    side = SIZE / CELLS
    radius = noise.uniform(0.28, 0.42) * side
    row, column = divmod(cell, CELLS)
    x, y = ((place + 0.5) * side + noise.uniform(-1.0, 1.0) * (0.48 * side - radius) for place in (column, row))
    box = (x - radius, y - radius, x + radius, y + radius)
    kind = noise.choice(KINDS)
    colour = noise.choice(COLOURS)
    if kind == "circle":
        canvas.ellipse(box, fill=colour)
    elif kind == "square":
        canvas.rectangle(box, fill=colour)
    else:
        canvas.polygon([(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)], fill=colour)


def main() -> None:
    """Writes the dataset into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Draws pictures of shapes and asks how many there are.")
    parser.add_argument("folder", type=Path, help="created if it does not exist; other files in it are kept")
    parser.add_argument("--train", type=int, default=3000, help="training rows (default 3000)")
    parser.add_argument("--held-out", type=int, default=300, help="held-out rows (default 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the pictures and their order (default 0)")
    arguments = parser.parse_args()
    write_shapes(arguments.folder, arguments.train, arguments.held_out, arguments.seed)


if __name__ == "__main__":
    main()
