"""What do new weights cost on their way to the rollout engines, relative to the model and to a plain broadcast?

Consumes nothing. Two ranks of FSDP2 send over 100 million parameters to engines in bfloat16, each in a process of its own, with
the product's own transfer: to two torch engines, to a vLLM engine, and to a vLLM engine on two devices. The figures are those
of the worst engine or process of the worst kind; `details` has each kind's:

- `sync_bytes_over_model`: bytes that an engine receives, divided by the bytes of the model in the engine's type;
- `sync_peak_over_bucket`: growth of private (anonymous) memory during a transfer, divided by the size of a bucket; the
  processes of a vLLM engine are among those measured, in a run of their own in which freed memory goes back at once, and
  the memory that they share for buckets counts as if it grew in each transfer;
- `sync_seconds_over_broadcast`: seconds of a transfer, divided by those of a broadcast of the same bytes from the first
  rank to the other ranks and engines, with gloo, in pieces of the size of a bucket; each at its best of several rounds;
- `delta_bytes_over_model`: bytes of a transfer of changes (`trainer.sync: delta`) to torch engines after five optimizer steps
  at a learning rate of 1e-6, divided by the bytes of the model in the engine's type; a step has the size that AdamW gives it;
- `delta_bytes_over_model_vllm`: the same to vLLM's engines, the worse of both kinds; null without vLLM;
- `sync_beside_copy_over_sum`: seconds in which the ranks send their weights and copy weights and moments for a checkpoint
  at the same time, divided by the sum of the seconds of each alone, each at its best.
"""

from __future__ import annotations

from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common import progress
from benchmarks.grow.members import BUCKET, RANKS, take_changes, take_memory, take_part
from benchmarks.grow.models import write_model
from benchmarks.grow.ranks import on_ranks
from benchmarks.grow.receivers import KINDS, kinds_here

SIZES: dict[str, Any] = {
    "hidden_size": 1024, "layers": 8, "heads": 16, "key_value_heads": 8, "intermediate_size": 2816,
    "max_positions": 256,
}  # fmt: skip
VOCABULARY = 32_000
RATIOS = ("sync_bytes_over_model", "sync_peak_over_bucket", "sync_seconds_over_broadcast")
DELTA = "delta_bytes_over_model"


def transfer_figures(
    folder: Path, sizes: dict[str, Any] = SIZES, kinds: Iterable[str] | None = None
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns the figures; for each kind of engine its own, and what each of its processes measured.

    sizes: of the model.
    kinds: of engines, torch among them; None for all that are installed.
    """
    maker = get_context("spawn").Process(target=write_model, args=(folder / "model", VOCABULARY, sizes))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise RuntimeError("the model could not be made; see the error above")
    details = {name: _of_kind(name, folder, sizes) for name in kinds or kinds_here()}
    worst = {name: max(each[name] for each in details.values()) for name in RATIOS}
    ranks = details["torch"]
    seconds, copy, both = (ranks[f"{name}seconds"] for name in ("", "copy_", "both_"))
    figures: dict[str, float | None] = {
        **worst,
        DELTA: ranks[DELTA],
        f"{DELTA}_vllm": max((each[DELTA] for name, each in details.items() if KINDS[name].devices), default=None),
        "sync_beside_copy_over_sum": both / (seconds + copy),
    }
    return figures, {**details, "bucket_bytes": BUCKET, "hidden_seconds": seconds + copy - both}


def _of_kind(name: str, folder: Path, sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns a kind's figures, the seconds from which they were computed, and what each process measured."""
    progress(f"transfers: ranks to {name}")
    members = RANKS + KINDS[name].count
    found = on_ranks(members, take_part, folder, sizes, name)
    measured = found
    changes = found
    if KINDS[name].devices:
        progress(f"transfers: memory of {name}")
        measured = on_ranks(members, take_memory, folder, sizes, name)
        progress(f"transfers: changes to {name}")
        changes = on_ranks(members, take_changes, folder, sizes, name)
    engines = found[RANKS:]
    names = ("seconds", "broadcast", "copy", "both")
    seconds = {each: _best(found, each) for each in names if each in found[0]}
    return {
        "sync_bytes_over_model": max(each["bytes"] / each["model"] for each in engines),
        DELTA: sum(each["delta"] for each in changes[:RANKS]) / engines[0]["model"],
        "sync_peak_over_bucket": max(each["peak"] for each in measured) / BUCKET,
        "sync_seconds_over_broadcast": seconds["seconds"] / seconds["broadcast"],
        **{each if each == "seconds" else f"{each}_seconds": value for each, value in seconds.items()},
        "processes": found,
        "peaks": [each["peak"] for each in measured],
    }


def _best(found: list[dict[str, Any]], name: str) -> float:
    """Returns the seconds of the best round, in which the slowest process counts."""
    return float(min(max(round_) for round_ in zip(*(each[name] for each in found), strict=True)))
