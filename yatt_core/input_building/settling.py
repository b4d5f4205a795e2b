"""A run's inputs on both storage tiers: fetched from the durable tier if missing, published after they are built.

Consumes a spec and the run's folder, which may be empty on a machine that continues a run from another machine.
Produces what `materialise` produces: sources that have changed or are unavailable here never affect a run that
has started.
"""

from __future__ import annotations

from pathlib import Path

from yatt_core.input_building.materialise import materialise
from yatt_core.inputs.manifest import INPUTS
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import RunStore
from yatt_core.workloads.inputs import materialise_workload


def settle_inputs(spec: RunSpec, run_folder: Path, store: RunStore) -> InputsReceipt:
    """Returns the verified inputs of a run after storing them on both tiers.

    Only one process at a time may call it. Raises what `materialise` and the store raise.
    """
    fetch_inputs(run_folder, store)
    receipt = build_inputs(spec, run_folder)
    store.publish(INPUTS)
    return receipt


def build_inputs(spec: RunSpec, run_folder: Path) -> InputsReceipt:
    """Builds a run's inputs, or verifies existing ones. Raises what `materialise` and `materialise_workload` raise."""
    return materialise(spec, run_folder) if spec.has.language_model else materialise_workload(spec, run_folder)


def fetch_inputs(run_folder: Path, store: RunStore) -> None:
    """Fetches the inputs into a run's folder that has none, if the durable tier has them."""
    if not (run_folder / INPUTS).exists():
        store.fetch(INPUTS)
