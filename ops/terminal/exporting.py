"""Exports a kept checkpoint as a Hugging Face model folder, for the command line and the Python API.

Consumes the home folder and a run. Produces the folder, whose bytes have been compared with the ledger's digests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.run.home import Home
from ops.terminal.lookup import opened_checkpoint
from yatt_core.checkpoints.adapter_export import export_adapter
from yatt_core.checkpoints.export import Exported, FloatName, dtype_of_model, export_model
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.checkpoints.tokenizer_agreement import tokenizer_difference
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.materialise import initial_model
from yatt_core.inputs.manifest import INPUTS
from yatt_core.inputs.reader import Inputs
from yatt_core.models.config_file import read_config
from yatt_core.spec import RunSpec

EXPORTS = "exports"
UNPADDED = (
    "its tokenizer has no token for padding that no text has, so that transformers classifies one row at a time; add one to "
    "classify several"
)
COMPARED = 64
"""Number of held-out tasks on which tokenizers are compared."""


@dataclass(frozen=True, slots=True)
class RunExport:
    """An exported checkpoint.

    written: what the folder contains.
    warning: how transformers' AutoTokenizer differs from the run's tokenizer on its prompts, and what others lack; None if
        there is nothing.
    """

    run: str
    iteration: int
    folder: Path
    written: Exported
    warning: str | None = None


def export_checkpoint(
    home: Home,
    run: str,
    iteration: int | None = None,
    alias: str | None = None,
    to: Path | None = None,
    dtype: FloatName | None = None,
    progress: Callable[[int], Callable[[int, int], None]] = lambda iteration: lambda done, total: None,
) -> RunExport:
    """Exports a checkpoint, by default the newest one that is kept.

    to: the folder, which must not exist; by default in `exports/` of the run's folder.
    dtype: type of the exported weights; None for that of the model with which the run began.
    progress: receives the iteration; returns what receives the bytes written and their total.

    Raises `RunNotFound`, `ConfigurationError`, and what `verify_checkpoint` and `export_model` raise.
    """
    name, spec, row = opened_checkpoint(home, run, iteration, alias)
    if spec.virtual:
        raise ConfigurationError(f"run {name}: it uses virtual engines, so there is no model to export")
    folder = home.run_folder(row.run)
    if not spec.has.language_model:
        raise ConfigurationError(
            f"run {name}: its workload {spec.workload.title} has no model in Hugging Face's form; the tensors of iteration "
            f"{row.iteration} are in {folder / row.folder} (safetensors)"
        )
    target = to or home.run_folder(name) / EXPORTS / f"i{row.iteration:06d}{f'-{dtype}' if dtype else ''}"
    identity = CheckpointIdentity(**verify_checkpoint(folder, row.folder, row.manifest_sha256).fields)
    model = Path(initial_model(spec, folder))
    written = export_model(
        folder / row.folder,
        model,
        target,
        identity,
        dtype=dtype or dtype_of_model(model),
        advance=progress(row.iteration),
        reward_model=spec.trains_reward_model,
    )
    differs = tokenizer_difference(target, _some_prompts(spec, home.run_folder(row.run)))
    unpadded = UNPADDED if spec.trains_reward_model and read_config(target).get("pad_token_id") is None else None
    warning = "; ".join(filter(None, (differs, unpadded))) or None
    return RunExport(run=name, iteration=row.iteration, folder=target, written=written, warning=warning)


def export_run_adapter(
    home: Home, run: str, iteration: int | None = None, alias: str | None = None, to: Path | None = None
) -> RunExport:
    """Exports the low-rank adapters of a checkpoint alone; arguments and errors as for `export_checkpoint`."""
    name, spec, row = opened_checkpoint(home, run, iteration, alias)
    if spec.trainer.lora is None:
        raise ConfigurationError(f"run {name}: it trains all weights and has no adapters; leave out --adapter")
    folder = home.run_folder(row.run)
    target = to or home.run_folder(name) / EXPORTS / f"i{row.iteration:06d}-adapter"
    identity = CheckpointIdentity(**verify_checkpoint(folder, row.folder, row.manifest_sha256).fields)
    model = Path(initial_model(spec, folder)).resolve()
    written = export_adapter(
        checkpoint=folder / row.folder, model=model, target=target, identity=identity, lora=spec.trainer.lora
    )
    return RunExport(name, row.iteration, target, written)


def _some_prompts(spec: RunSpec, folder: Path) -> list[str]:
    """Returns texts of the run on which tokenizers are compared: questions that are held out, and their answers."""
    inputs = Inputs.open(folder / INPUTS, spec)
    prompts = inputs.held_out[:COMPARED] or inputs.probe[:COMPARED]
    return [text for prompt in prompts for text in (prompt.text, prompt.answer) if text]
