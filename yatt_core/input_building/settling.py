"""A run's inputs on both tiers: taken from the durable one where the run's folder lacks them, and kept there once they are made.

Consumes a spec and the run's folder, which may be empty on a machine that goes on with a run of another. Produces what
`materialise` does: sources that have changed since, or are not to be had here, never reach a run that has begun.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import RunStore


def settle_inputs(spec: RunSpec, run_folder: Path, store: RunStore) -> InputsReceipt:
    """The run's inputs, verified, on both tiers. Meant for one process at a time. Raises as `materialise` and the store."""
    fetch_inputs(run_folder, store)
    receipt = materialise(spec, run_folder)
    store.publish(INPUTS)
    return receipt


def fetch_inputs(run_folder: Path, store: RunStore) -> None:
    """Puts the inputs into a run's folder that has none, where the durable tier has them."""
    if not (run_folder / INPUTS).exists():
        store.fetch(INPUTS)
