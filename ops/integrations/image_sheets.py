"""Draws images of samples as one picture: a row for each prompt, with its mean reward. Needs matplotlib.

Consumes an iteration's stored images. Produces a picture.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from yatt_core.errors import DataError
from yatt_core.installed import failure_text
from yatt_core.workloads.images import ImageFolder, StoredImage

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

PROMPTS = 24
"""Rows of a sheet: the first prompts."""
OF_A_PROMPT = 6
"""Images of a row: the first ones."""
LONGEST = 48
"""Characters of a prompt."""
FINEST = 128
"""Pixels of an image's side, of which a sheet shows fewer anyway; many large images at once would fill the memory."""
SIDE = 0.7
"""Inches of an image's side."""


def picture_of(opened: ImageFolder, title: str) -> Image | None:
    """Returns the sheet as a picture; None without images. Raises `DataError` if there is none to be had from them."""
    from PIL import Image

    target = io.BytesIO()
    try:
        figure = sheet_of(opened, title)
        if figure is None:
            return None
        figure.savefig(target, format="png")
    # Whatever the images and a user's settings of matplotlib lead to: without its picture a row is delivered all the same.
    except (Image.DecompressionBombError, MemoryError, OSError, RuntimeError, ValueError) as error:
        raise DataError(f"the picture cannot be drawn: {failure_text(error)}") from error
    return Image.open(target)


def sheet_of(opened: ImageFolder, title: str) -> Figure | None:
    """Returns the picture; None without images. Raises `DataError` for a file that is missing or damaged."""
    from matplotlib.figure import Figure
    from PIL import Image

    of_prompts: dict[str, list[StoredImage]] = {}
    for image in opened.images:
        of_prompts.setdefault(image.caption, []).append(image)
    prompts = list(of_prompts.items())[:PROMPTS]
    if not prompts:
        return None
    columns = max(min(OF_A_PROMPT, len(images)) for _, images in prompts)
    figure = Figure(figsize=(3.4 + SIDE * columns, 0.6 + SIDE * len(prompts)), layout="constrained")
    axes = figure.subplots()
    for row, (_, images) in enumerate(prompts):
        for column, image in enumerate(images[:OF_A_PROMPT]):
            with Image.open(io.BytesIO(opened.read(image.address))) as picture:
                picture.thumbnail((FINEST, FINEST))  # in place, and never larger
                pixels = np.asarray(picture)
            place = (column - 0.46, column + 0.46, row + 0.46, row - 0.46)
            axes.imshow(pixels, extent=place, interpolation="nearest", vmin=0, vmax=255)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(len(prompts) - 0.5, -0.5), aspect="equal", xticks=[])
    axes.set_yticks(range(len(prompts)), [_words(caption, images) for caption, images in prompts], parse_math=False)
    axes.set_title(title, fontsize="medium", parse_math=False)
    axes.tick_params(length=0, labelsize="small")
    axes.spines[:].set_visible(False)
    return figure


def _words(caption: str, images: Sequence[StoredImage]) -> str:
    """Returns what stands beside a row."""
    rewards = [image.reward for image in images if image.reward is not None]
    said = " ".join(caption.split())
    short = said if len(said) <= LONGEST else f"{said[: LONGEST - 1]}…"
    return f"{short}\n{fmean(rewards):.3g}" if rewards else short
