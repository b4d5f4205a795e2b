"""The images that a workload's samples were: those of an iteration, and a grid of prompts over iterations.

Consumes the ledger and the runs' folders. Produces views that name each image by digest and file; verifies manifests and files
against the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from db.ledger import Ledger
from flows.run.home import Home
from ops.presentation.columns import Column, Columns
from ops.queries.run_list import find_line
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.workloads.images import IMAGES, ImageFolder, StoredImage, image_file

WIDTH = 10
"""Iterations of a grid by default."""
WIDEST = 50
ROWS = 50
"""Prompts of a grid."""
OF_A_CELL = 4
"""Images of a prompt in a cell of a grid."""


@dataclass(frozen=True, slots=True)
class ImageView:
    """An image of an iteration.

    address: the SHA-256 of its file.
    file: its place below the home folder.
    caption: what it was asked to show.
    reward: None if it is not finite.
    seed: the one that it was drawn from, as text, since it may need all 64 bits.
    """

    address: str
    file: str
    caption: str
    reward: float | None
    seed: str


@dataclass(frozen=True, slots=True)
class IterationImages:
    """The images of an iteration, in the order of its samples."""

    run: str
    iteration: int
    images: tuple[ImageView, ...]


@dataclass(frozen=True, slots=True)
class ImageCell:
    """A prompt's images in an iteration.

    reward: the mean of all of them; None without any.
    count: their number, of which `images` has the first ones.
    """

    iteration: int
    reward: float | None
    count: int
    images: tuple[ImageView, ...]


@dataclass(frozen=True, slots=True)
class ImageRow:
    """A prompt over iterations, one cell each."""

    caption: str
    cells: tuple[ImageCell, ...]


@dataclass(frozen=True, slots=True)
class ImageGrid:
    """The images of prompts over iterations.

    iterations: the columns, ascending.
    rows: the first prompts, in the order in which they appear.
    prompts: the number of all.
    lacking: iterations among the columns whose images are not here.
    problems: a sentence for each of the columns whose images are damaged.
    """

    run: str
    iterations: tuple[int, ...]
    rows: tuple[ImageRow, ...]
    prompts: int
    lacking: tuple[int, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an iteration's images are.

    prepared: the folder of its prepared columns.
    below: the same, relative to the home.
    sha256: of the images' manifest.
    """

    prepared: Path
    below: str
    sha256: str

    @property
    def is_here(self) -> bool:
        """Whether the images are on this machine."""
        return (self.prepared / IMAGES).exists()


def iteration_images(ledger: Ledger, home: Home, run: str, iteration: int) -> IterationImages:
    """Returns the images of an iteration along the current line.

    Raises `RunNotFound`, `ConfigurationError` if none are recorded, and `DataError` if they are not here or damaged.
    """
    place = _required(ledger, home, run, iteration)
    found = ImageFolder.open(place.prepared, place.sha256)
    return IterationImages(run, iteration, tuple(_view(place, image) for image in found.images))


def has_images(ledger: Ledger, home: Home, run: str, iteration: int) -> bool:
    """Returns whether images of an iteration are recorded."""
    return _place(ledger, home, run, iteration) is not None


def is_here(ledger: Ledger, home: Home, run: str, iteration: int) -> bool:
    """Returns whether the images of an iteration are on this machine."""
    place = _place(ledger, home, run, iteration)
    return place is not None and place.is_here


def image_folder(ledger: Ledger, home: Home, run: str, iteration: int) -> ImageFolder:
    """Opens the files of an iteration's images. Raises as `iteration_images` does."""
    place = _required(ledger, home, run, iteration)
    return ImageFolder.open(place.prepared, place.sha256)


def image_grid(
    ledger: Ledger, home: Home, run: str, first: int = 1, last: int | None = None, width: int = WIDTH
) -> ImageGrid:
    """Returns the images of committed iterations, evenly spread from `first` to `last`, both included.

    last: None for the newest.
    width: the most iterations, at least 2.

    A manifest that is missing or not the recorded one hides its own iteration's images alone. Raises `RunNotFound`.
    """
    newest = find_line(ledger, run).iteration
    end = newest if last is None else min(last, newest)
    read: dict[int, tuple[ImageView, ...]] = {}
    lacking = []
    problems = []
    for number in spread(max(1, first), end, min(width, WIDEST)):
        place = _place(ledger, home, run, number)
        if place is None:
            continue
        read[number] = ()
        if not place.is_here:
            lacking.append(number)
            continue
        try:
            opened = ImageFolder.open(place.prepared, place.sha256)
        except DataError as error:
            problems.append(f"images of iteration {number}: {error}")
            continue
        read[number] = tuple(_view(place, image) for image in opened.images)
    grouped = {number: _by_caption(images) for number, images in read.items()}
    captions = list(dict.fromkeys(caption for found in grouped.values() for caption in found))
    rows = [
        ImageRow(caption, tuple(_cell(number, found.get(caption, [])) for number, found in grouped.items()))
        for caption in captions[:ROWS]
    ]
    return ImageGrid(
        run=run,
        iterations=tuple(read),
        rows=tuple(rows),
        prompts=len(captions),
        lacking=tuple(lacking),
        problems=tuple(problems),
    )


def by_prompt(found: IterationImages) -> list[ImageRow]:
    """Returns all images of an iteration as rows of one cell each, at most `ROWS` prompts."""
    grouped = _by_caption(found.images)
    return [
        ImageRow(caption, (_cell(found.iteration, images, limit=None),))
        for caption, images in list(grouped.items())[:ROWS]
    ]


def spread(first: int, last: int, count: int) -> list[int]:
    """Returns at most `count` numbers, evenly spread from `first` to `last`, both included; none if `last` is smaller."""
    total = last - first + 1
    if total <= count:
        return list(range(first, last + 1))
    return [first + round(place * (total - 1) / (count - 1)) for place in range(count)]


def _required(ledger: Ledger, home: Home, run: str, iteration: int) -> _Place:
    find_line(ledger, run)
    place = _place(ledger, home, run, iteration)
    if place is None:
        raise ConfigurationError(f"run {run}: no images of iteration {iteration} are recorded")
    if not place.is_here:
        raise DataError(f"{place.prepared / IMAGES}: not on this machine, or pruned since nothing needs it any more")
    return place


def _place(ledger: Ledger, home: Home, run: str, iteration: int) -> _Place | None:
    owner, branch, _ = ledger.commits.maker(run, iteration)
    done = ledger.phases.done(owner, branch, iteration, "prepare")
    if done is None or not done.receipt or not done.receipt.get("images"):
        return None
    prepared = home.run_folder(owner) / done.receipt["folder"]
    return _Place(prepared, prepared.relative_to(home.folder).as_posix(), done.receipt["images"])


def _view(place: _Place, image: StoredImage) -> ImageView:
    return ImageView(
        address=image.address,
        file=f"{place.below}/{IMAGES}/{image_file(image.address)}",
        caption=image.caption,
        reward=image.reward,
        seed=str(image.seed),
    )


def _by_caption(images: Iterable[ImageView]) -> Mapping[str, list[ImageView]]:
    found: dict[str, list[ImageView]] = {}
    for image in images:
        found.setdefault(image.caption, []).append(image)
    return found


def _cell(iteration: int, images: list[ImageView], limit: int | None = OF_A_CELL) -> ImageCell:
    rewards = [image.reward for image in images if image.reward is not None]
    return ImageCell(
        iteration=iteration,
        reward=fmean(rewards) if rewards else None,
        count=len(images),
        images=tuple(images[:limit]),
    )


IMAGE_COLUMNS: Columns[ImageView] = (
    Column("caption", lambda image: image.caption),
    Column("reward", lambda image: image.reward, number=True),
    Column("seed", lambda image: image.seed, style="nowrap"),
    Column("file", lambda image: image.file, style="wide"),
)
