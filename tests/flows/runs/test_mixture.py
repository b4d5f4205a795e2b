"""A mixture of file sources over several epochs: a run killed at epoch boundaries has the same order and bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.datasets.test_source_files import SAVED
from tests.flows.tools import Driver, same_result
from tests.inputs.example_specs import png, write_jsonl
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.stream import Cursor, draw, locate
from yatt_core.spec import RunSpec

PROMPTS = 8
KILLED_IN = 2


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Creates six rows of JSON Lines with images, nine of Parquet, and a Hugging Face dataset folder with eight."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "a.png").write_bytes(png(1, 2, 3))
    rows = [{"prompt": f"jsonl {i}", "image": "a.png" if i % 2 else None} for i in range(6)]
    pq.write_table(pa.table({"prompt": [f"parquet {i}" for i in range(9)]}), folder / "b.parquet")
    return [
        {**write_jsonl(folder / "a.jsonl", rows), "image_field": "image", "weight": 2.0},
        {"kind": "parquet", "path": str(folder / "b.parquet"), "weight": 1.5},
        {"kind": "huggingface", "path": str(SAVED), "image_field": "images"},
    ]


def start_run(driver: Driver, sources: list[dict[str, Any]]) -> str:
    return driver.create(
        "virtual.yaml",
        f"data.sources={sources}",
        "data.held_out=6",
        "data.probe=0",
        f"data.prompts_per_iteration={PROMPTS}",
        "iterations=3",
        "checkpoints.every=100",
        "evaluation.every=0",
    )


def order_of(driver: Driver, run: str) -> list[str]:
    """Returns prompt ids in the order in which the run drew them, from its experience."""
    files = sorted((driver.home.run_folder(run) / "experience").glob("b000/i*/w00-s*/samples.parquet"))
    table = pa.concat_tables([pq.read_table(path, columns=["prompt_ordinal", "prompt_id"]) for path in files])
    drawn = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert sorted(drawn) == list(range(3 * PROMPTS))
    return [drawn[ordinal] for ordinal in range(3 * PROMPTS)]


def spec_and_inputs(driver: Driver, run: str) -> tuple[RunSpec, Inputs]:
    with driver.ledger() as ledger:
        spec = RunSpec.model_validate(ledger.runs.revision(run).spec)
    return spec, Inputs.open(driver.home.run_folder(run) / INPUTS, spec)


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_a_mixture_killed_at_an_epoch_boundary_continues_in_the_same_order(
    driver: Driver, sources: list[dict[str, Any]]
) -> None:
    undisturbed = start_run(driver, sources)
    driver.drive(undisturbed)
    killed = start_run(driver, sources)
    driver.drive_until_killed(killed, f"collect:{KILLED_IN}")
    driver.end_actors(killed)
    driver.drive(killed)

    spec, inputs = spec_and_inputs(driver, killed)
    drawn, _ = draw(spec.data, spec.seed, Cursor.start(spec.data), 3 * PROMPTS)
    assert order_of(driver, killed) == order_of(driver, undisturbed) == [inputs.prompt(r).prompt_id for r in drawn]
    assert same_result(driver.results(killed), driver.results(undisturbed))
    in_it = drawn[(KILLED_IN - 1) * PROMPTS : KILLED_IN * PROMPTS]
    begun = {(r.source, locate(r.position, inputs.train_sizes[r.source])) for r in in_it}
    assert (0, (1, 0)) in begun, "an epoch of a source begins in the killed iteration"
    media = Path(driver.home.run_folder(killed)) / INPUTS / "media"
    assert len(list(media.glob("*/*"))) > 1
