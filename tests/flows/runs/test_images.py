"""A vision-language run end to end: it learns from images that no log contains, and a kill does not change its bits."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.shapes import write_shapes
from flows.run.results import RunResults
from tests.flows.tools import Driver, same_result
from tests.recovery.nursery import Nursery
from yatt_core.prompts.media import media_path

pytestmark = pytest.mark.verify
SPEC = "pictures.yaml"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Draws pictures and returns overrides that name them."""
    folder = tmp_path_factory.mktemp("shapes")
    write_shapes(folder, 120, 12)
    return (f"data.sources.0.path={folder}/train.jsonl", f"data.sources.0.held_out_path={folder}/held-out.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery, shapes: tuple[str, ...]) -> tuple[Driver, str]:
    driver = Driver(tmp_path_factory.mktemp("undisturbed"), nursery)
    run = driver.create(SPEC, *shapes)
    driver.drive(run)
    return driver, run


def samples_of(folder: Path) -> list[dict[str, object]]:
    return [
        row for path in sorted(folder.glob("experience/**/samples.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def test_experience_names_the_images_and_nothing_holds_their_pixels(finished: tuple[Driver, str]) -> None:
    driver, run = finished
    folder = driver.home.run_folder(run)
    rows = samples_of(folder)
    assert len(rows) == 3 * 12 * 4
    for row in rows:
        assert media_path(folder / "inputs", str(row["media"])).is_file()
        assert str(row["prompt_tokens"]).count("4, ") >= 16, "a placeholder for each patch"
    assert len({row["media"] for row in rows}) > 20
    with driver.ledger() as ledger:
        gaps = [value for _, value in ledger.metrics.history(run, "train_rollout_logprob_diff_max")]
    assert len(gaps) == 3 and max(gaps) < 1e-4, "the trainer sees what the sampler saw"
    png = b"\x89PNG"
    kept = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == png]
    assert kept and all(path.is_relative_to(folder / "inputs" / "media") for path in kept)


def test_killed_in_collect_and_in_learn_it_ends_with_the_same_bits(
    finished: tuple[Driver, str], driver: Driver, shapes: tuple[str, ...]
) -> None:
    undisturbed: RunResults = finished[0].results(finished[1])
    run = driver.create(SPEC, *shapes, "controllers.count=1")
    driver.drive_until_killed(run, "collect:2")
    driver.drive_until_killed(run, "learn:3")
    driver.end_actors(run)
    driver.drive(run)
    assert same_result(driver.results(run), undisturbed)
