"""Where exactness holds and what it costs, as measured: a table that `python -m benchmarks.exact --write FILE` writes.

Consumes the shipped table; produces the line of a plan, and the table of docs/exactness.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from yatt_core.input_building.engine_check import exact_obstacles_here
from yatt_core.planning.cluster import CORE, DescribedCluster
from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import read_document, yaml_text
from yatt_core.spec.run import RunSpec

SHIPPED = Path(__file__).parent / "exact_prices.yaml"
CPU = "cpu"
CUDA = "cuda"
DTYPES = ("float32", "bfloat16")
ENGINES = ("torch", "fsdp2", "megatron", "vllm")
DEVICES = (CPU, CUDA)
NAMES: Mapping[str, str] = {
    "torch": "torch, rollout and trainer",
    "fsdp2": "FSDP2, trainer",
    "megatron": "Megatron-Core, trainer",
    "vllm": "vLLM, rollout",
    CPU: "processors",
    CUDA: "GPUs",
}
LITTLE = 0.1
"""By so much do prices scatter that are 1, measured on a machine with other work."""


class ExactCell(SpecModel):
    """One engine, type and device.

    holds: whether the contract held when it was run; None if it was not run.
    price: throughput that is not exact, over exact; None if it was not measured.
    """

    holds: bool | None = None
    price: float | None = None


class ExactPrices(SpecModel):
    """The table.

    processor: on which it was measured.
    cells: by `DTYPE_ENGINE_DEVICE`.
    aligned: throughput that is not exact, over aligned, of torch with torch on processors, by type.
    vllm_differs_from: by type, fewest prompts in a batch whose answers by vLLM on processors differ from those in a crowd; None
        if none do, or if it was not run.
    """

    processor: str
    cells: dict[str, ExactCell]
    aligned: dict[str, float | None]
    vllm_differs_from: dict[str, int | None]

    def cell(self, dtype: str, engine: str, device: str) -> ExactCell:
        """Returns a cell."""
        return self.cells.get(f"{dtype}_{engine}_{device}", ExactCell())


def read_prices() -> ExactPrices:
    """Reads the shipped table."""
    return ExactPrices.model_validate(read_document(SHIPPED))


def written(prices: ExactPrices) -> str:
    """Returns the text of the table."""
    comment = "# Written by `python -m benchmarks.exact --write yatt_core/planning/exact_prices.yaml`; null: not run.\n"
    return comment + yaml_text(prices.model_dump(mode="json"))


def price_line(spec: RunSpec, cluster: DescribedCluster, prices: ExactPrices) -> str:
    """Returns what exactness costs the engines of a run, or that it was not measured for them."""
    device = CPU if cluster.card_name == CORE else CUDA
    if not spec.is_exact or exact_obstacles_here(spec, lambda _: device == CPU):
        return "exact: the run is not exact, so exactness costs nothing"
    parts = list(dict.fromkeys(_parts(spec)))
    if spec.aligned:
        return _line(
            [(f"torch with torch in {dtype}", prices.aligned.get(dtype)) for dtype, _ in parts[:1]], device, prices
        )
    return _line(
        [(f"{engine} in {dtype}", prices.cell(dtype, engine, device).price) for dtype, engine in parts], device, prices
    )


def table_lines(prices: ExactPrices) -> Iterator[str]:
    """Yields the lines of the Markdown table of all cells."""
    columns = [(dtype, device) for device in DEVICES for dtype in DTYPES]
    yield "| engine | " + " | ".join(f"{dtype} on {NAMES[device]}" for dtype, device in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for engine in ENGINES:
        cells = [_said(prices, dtype, engine, device) for dtype, device in columns]
        yield f"| {NAMES[engine]} | " + " | ".join(cells) + " |"


def _parts(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Yields the type and the kind of each engine."""
    engines = [spec.trainer.engine, *([spec.rollout.engine] if spec.samples_responses else [])]
    for engine in engines:
        dtype = getattr(engine, "dtype", None)
        if dtype is not None:
            yield dtype, engine.kind


def _line(found: list[tuple[str, float | None]], device: str, prices: ExactPrices) -> str:
    said = [f"{name} {_cost(price)}" for name, price in found]
    return f"exact: throughput of {', '.join(said)} on {NAMES[device]} (measured on {prices.processor})"


def _cost(price: float | None) -> str:
    if price is None:
        return "not measured"
    if abs(price - 1.0) <= LITTLE:
        return "as without"
    return f"{1.0 / price:.0%} of that without"


def _said(prices: ExactPrices, dtype: str, engine: str, device: str) -> str:
    cell = prices.cell(dtype, engine, device)
    if cell.holds is None:
        return "not run (no GPU)" if device == CUDA else "not run"
    if cell.holds:
        return "holds" if cell.price is None else f"holds; {_cost(cell.price)}"
    if engine == "vllm":
        return f"refused: a batch of {prices.vllm_differs_from.get(dtype)} differs from a crowd"
    return "refused: a resumed run differs"
