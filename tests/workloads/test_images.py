"""The images of a workload's samples: files by digest beside what is sealed, the same after a kill, kept and deleted with it."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flows.disposal.usage import disk_usage
from ops.queries.images import ImageGrid, image_folder, image_grid, iteration_images, spread
from tests.services import ROOT
from tests.workloads.in_process import OwnRun
from tests.workloads.painting import GROUP, PROMPTS, SIDE, WRONG
from yatt_core.engines.train.base.engine import WorkloadTrainEngine
from yatt_core.engines.train.workload.own import OwnWorkload
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.experience.prepared import prepared_folder
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask, PromptRef
from yatt_core.spec import load_spec
from yatt_core.workloads.contract import Images
from yatt_core.workloads.finding import make_workload
from yatt_core.workloads.images import IMAGES, ImageFolder, encode_images, publish_images
from yatt_core.workloads.inputs import materialise_workload
from yatt_core.workloads.listings import LONGEST_TEXT

SPEC = ROOT / "tests" / "workloads" / "painting.yaml"
COUNTING = ROOT / "tests" / "workloads" / "counting.yaml"
KEY = WorkKey("painted", 0, 3, "prepare")
ALL = len(PROMPTS) * GROUP


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def painted(levels: list[int], first_seed: int = 0) -> Images:
    pixels = np.tile(np.array(levels, np.uint8).reshape(-1, 1, 1, 1), (1, SIDE, SIDE, 3))
    seeds = np.arange(first_seed, first_seed + len(levels), dtype=np.uint64)
    return Images(pixels, ["wall"] * len(levels), np.array(levels) / 2, seeds)


def grid_of(run: OwnRun) -> ImageGrid:
    with run.ledger() as ledger:
        return image_grid(ledger, run.home, run.run)


def test_images_are_stored_once_by_the_digest_of_their_bytes(tmp_path: Path) -> None:
    ranks = [encode_images(painted([7, 7]), ""), encode_images(painted([]), ""), encode_images(painted([9], 2), "")]
    sha256 = publish_images(tmp_path, KEY, 1, ranks)
    folder = tmp_path / prepared_folder(0, 3, 1)
    opened = ImageFolder.open(folder, sha256)
    stored = opened.images
    assert [(image.caption, image.reward, image.seed) for image in stored] == [
        ("wall", 3.5, 0),
        ("wall", 3.5, 1),
        ("wall", 4.5, 2),
    ]
    assert stored[0].address == stored[1].address != stored[2].address
    data = opened.read(stored[2].address)
    assert hashlib.sha256(data).hexdigest() == stored[2].address
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "PNG" and (np.asarray(image) == 9).all() and image.size == (SIDE, SIDE)
    names = {path.name for path in (folder / IMAGES).iterdir()}
    assert names == {"manifest.json", *(f"{image.address}.png" for image in stored)}
    assert publish_images(tmp_path, KEY, 1, ranks) == sha256, "a second attempt writes the same bytes"
    (folder / IMAGES / f"{stored[2].address}.png").write_bytes(data[:-1])
    with pytest.raises(DataError, match="bytes, its manifest says"):
        opened.read(stored[2].address)
    for address in ("0" * 64, "../manifest", stored[2].address.upper()):
        with pytest.raises(DataError, match=r"has no image|is not the address"):
            opened.read(address)
    with pytest.raises(DataError, match="sha256"):
        ImageFolder.open(folder, "0" * 64)


def test_a_reward_that_is_not_finite_is_unknown(tmp_path: Path) -> None:
    images = painted([7, 8])
    images.rewards[0] = np.nan
    sha256 = publish_images(tmp_path, KEY, 1, [encode_images(images, "")])
    opened = ImageFolder.open(tmp_path / prepared_folder(0, 3, 1), sha256)
    assert [image.reward for image in opened.images] == [None, 4.0]


def test_captions_are_cut_and_every_encoding_has_them(tmp_path: Path) -> None:
    images = painted([7, 8])
    told = Images(images.pixels, ["long" * LONGEST_TEXT, "broken \ud800\x1b[2J"], images.rewards, images.seeds)
    sha256 = publish_images(tmp_path, KEY, 1, [encode_images(told, "")])
    stored = ImageFolder.open(tmp_path / prepared_folder(0, 3, 1), sha256).images
    captions = [image.caption.encode().decode() for image in stored]
    assert captions == [("long" * LONGEST_TEXT)[:LONGEST_TEXT], "broken \\ud800\\x1b[2J"]


def test_images_without_samples_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from tests.workloads.counting import Counting\n"
        "class Mine(Counting):\n    def images(self, columns, draw):\n        return None\n"
    )
    spec = load_spec(COUNTING, [f"workload={{kind: custom, file: '{path}:Mine'}}"])
    with pytest.raises(ConfigurationError, match="has a method images but no method sample"):
        make_workload(spec)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("type", "returned str; expected Images"),
        ("pixels", r"float64 \[1, 4, 4, 3\]; expected uint8"),
        ("shape", r"uint8 \[1, 4, 4\]; expected uint8"),
        ("size", "0 x 4 pixels; expected sides"),
        ("captions", "0 captions of 1 images"),
        ("words", "a caption is no text"),
        ("text", "captions are str; expected a list of texts"),
        ("rows", r"rewards are of shape \[1, 3\]; expected a numpy array \[N\]"),
        ("scalar", r"rewards are float64; expected a numpy array \[N\]"),
        ("seeds", "integers as seeds"),
    ],
)
def test_what_is_no_image_is_refused_with_its_name(wrong: str, message: str, tmp_path: Path) -> None:
    assert wrong in WRONG
    spec = load_spec(SPEC, [f"workload.settings={{wrong: {wrong}}}"])
    materialise_workload(spec, tmp_path)
    workload = OwnWorkload(spec, RankContext(tmp_path, tmp_path / "inputs", "", 0))
    engine = WorkloadTrainEngine(spec, workload)
    engine.connect(0, 1, "")
    engine.initialise()
    with pytest.raises(ConfigurationError, match=f"tests.workloads.painting:Painting: images.*{message}"):
        engine.prepare(BatchTask(WorkKey("painted", 0, 1, "prepare"), 1, (), rows=(PromptRef(0, 0, 0),)))


def test_the_images_of_a_run_are_the_same_after_kills_and_leave_nothing_of_attempts(tmp_path: Path) -> None:
    undisturbed = OwnRun.of(tmp_path / "undisturbed", SPEC)
    undisturbed.drive()
    struck = OwnRun.of(tmp_path / "struck", SPEC)
    for place in ("after prepare:2", "after learn:3"):
        assert struck.drive(place, cold=True) is None
    struck.drive(cold=True)
    grids = [grid_of(run) for run in (undisturbed, struck)]
    shown = [[[image.address for cell in row.cells for image in cell.images] for row in grid.rows] for grid in grids]
    assert shown[0] == shown[1] and grids[0].iterations == (1, 2, 3, 4)
    folders = [path for path in struck.folder.glob("experience/*/*/*") if path.is_dir()]
    assert sorted(path.parent.name for path in folders) == ["i000001", "i000002", "i000003", "i000004"]
    assert [row.caption for row in grids[0].rows] == list(PROMPTS)
    rewards = [cell.reward or 0.0 for cell in grids[0].rows[0].cells]
    assert rewards[-1] > rewards[0] and grids[0].prompts == len(PROMPTS)
    with undisturbed.ledger() as ledger:
        found = iteration_images(ledger, undisturbed.home, undisturbed.run, 4)
        first = found.images[0]
        file = undisturbed.home.folder / first.file
        opened = image_folder(ledger, undisturbed.home, undisturbed.run, 4)
        assert len(found.images) == ALL and file.read_bytes() == opened.read(first.address)
        with pytest.raises(ConfigurationError, match="no images of iteration 9"):
            iteration_images(ledger, undisturbed.home, undisturbed.run, 9)


@pytest.fixture
def pruned(tmp_path: Path) -> OwnRun:
    run = OwnRun.of(tmp_path / "pruned", SPEC, "retention.experience=needed", "checkpoints.keep=2")
    run.drive()
    return run


def test_images_are_counted_and_deleted_with_the_experience(pruned: OwnRun) -> None:
    kept = OwnRun.of(pruned.home.folder, SPEC)
    kept.drive()
    used = {each.name: each.kinds["experience"] for each in disk_usage(pruned.home, (pruned.run, kept.run)).runs}
    stored = sum(path.stat().st_blocks * 512 for path in kept.folder.glob("experience/*/*/*/images/*.png"))
    assert 0 < stored < used[kept.run]
    grid = grid_of(pruned)
    assert grid.lacking == (1, 2) and not list(pruned.folder.glob("experience/b000/i000001/*/images"))
    assert grid.iterations == (1, 2, 3, 4) and [cell.count for cell in grid.rows[0].cells] == [0, 0, GROUP, GROUP]
    with pruned.ledger() as ledger, pytest.raises(DataError, match="pruned"):
        iteration_images(ledger, pruned.home, pruned.run, 1)


def test_a_grid_spreads_over_the_iterations() -> None:
    assert spread(1, 4, 10) == [1, 2, 3, 4]
    assert spread(1, 160, 5) == [1, 41, 81, 120, 160]
    assert spread(7, 7, 10) == [7] and spread(5, 4, 10) == []
