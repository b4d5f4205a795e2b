"""Checks of a GPU's memory: tensors that leave it and come back, and what `yatt plan` says of it.

Consumes this process's GPU. Where cores stand in, host memory is treated as if it were a GPU's; the peaks of calls are not judged
there, which `benchmarks.grow` and `benchmarks.memory` do.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.exact.contract import rows_of
from benchmarks.gpu.claims import Finding, Place
from benchmarks.gpu.courses import Alone, started, updated
from benchmarks.gpu.places import new_folder, sizes_at
from benchmarks.gpu.work import TRAINERS, Work, model_in, request_of, spec_of
from yatt_core.engines import offload
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.planning.assumptions import Assumptions, Spread
from yatt_core.planning.memory.activations import micro_batch_of
from yatt_core.planning.memory.demand import trainer_of
from yatt_core.planning.roles import roles_of

DTYPE = "bfloat16"
BELOW = 0.9
ABOVE = 1.5
"""The plan may promise this much less, or more, than what is measured."""
LASTING = 0.05
"""Largest deviation of lasting tensors, whose sizes need no assumptions."""


def trainer_leaves(place: Place, trainer: str) -> Finding:
    """Offloads and reloads a trainer after an update, and compares every byte."""
    _stand_in(place)
    work = sizes_at(place).bits
    engine, folder = _trainer(place, trainer, work)
    updated(Alone(), engine, folder, work)
    before = engine.weights_digest()
    held = engine.policy.memory()
    lasting = _storages(held.lasting)
    taken = _bytes_there(held.lasting)
    copies = [_copy(storage) for storage in lasting]
    allocated = _allocated()
    engine.offload()
    freed = allocated - _allocated()
    left = _bytes_there(held.lasting)
    engine.reload()
    same = all(torch.equal(copy, _copy(storage)) for copy, storage in zip(copies, lasting, strict=True))
    same = same and engine.weights_digest() == before
    said = f"of {taken / 1e6:.1f} MB {left / 1e6:.1f} stayed, {'the same' if same else 'other'} bits came back"
    return Finding(same and taken > 0 == left, said, {"freed_gb": None if place.stand_in else freed / 1e9})


def rollout_leaves(place: Place) -> Finding:
    """Puts the torch engine to sleep, and asks it again."""
    _stand_in(place)
    work = sizes_at(place).bits
    model = model_in(place.folder, work)
    engine = TorchRolloutEngine(
        model_path=str(model),
        dtype=DTYPE,
        max_prompt_tokens=work.prompt,
        max_new_tokens=work.response,
        inputs_folder=model,
        folder_version=0,
    )
    request = request_of(work, 1)
    first = rows_of(engine.generate(request))
    taken = _bytes_there(engine._tensors.values())
    allocated = _allocated()
    engine.sleep()
    freed = allocated - _allocated()
    left = _bytes_there(engine._tensors.values())
    same = rows_of(engine.generate(request)) == first
    said = f"of {taken / 1e6:.1f} MB {left / 1e6:.1f} stayed, {'the same' if same else 'other'} answers"
    return Finding(same and taken > 0 == left, said, {"freed_gb": None if place.stand_in else freed / 1e9})


def plan_is_right(place: Place, trainer: str) -> Finding:
    """Compares a trainer's lasting tensors, and the peak of its second update, with the plan."""
    work = sizes_at(place).bits
    engine, folder = _trainer(place, trainer, work)
    updated(Alone(), engine, folder, work, full=True)
    held = engine.policy.memory()
    lasting = _bytes_of(_storages((*held.lasting, *held.passing)))
    idle = _allocated()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    updated(Alone(), engine, folder, work, full=True)
    peak = lasting + torch.cuda.max_memory_allocated() - idle if torch.cuda.is_available() else None
    planned_lasting, planned_peak = _planned(work, trainer)
    lasting_ratio = planned_lasting / lasting
    peak_ratio = None if peak is None else planned_peak / peak
    holds = abs(lasting_ratio - 1.0) <= LASTING and (peak_ratio is None or BELOW <= peak_ratio <= ABOVE)
    peaks = "" if peak_ratio is None else f", in an update {peak_ratio:.2f}"
    return Finding(
        holds=holds,
        said=f"planned over measured: lasting {lasting_ratio:.2f}{peaks}",
        figures={"lasting_planned_over_measured": lasting_ratio, "update_planned_over_measured": peak_ratio},
    )


def _planned(work: Work, trainer: str) -> tuple[int, int]:
    """Returns the bytes of lasting tensors on the device, and with them the most that an update takes."""
    spec = spec_of(work, TRAINERS[trainer], DTYPE)
    lengths = Spread(work.prompt, 0.0)
    roles = roles_of(spec, Assumptions(prompt=lengths, own_vocabulary=work.vocabulary))
    batch = micro_batch_of(
        budget=work.micro_batch_tokens,
        samples=work.prompts * work.samples,
        prompt=work.prompt,
        response=work.response,
    )
    memory = trainer_of(roles, batch, 1, 1)
    held = memory.lasting
    # FSDP2's gradients exist only within an update.
    exists = held.weights + held.optimizer + (0 if trainer == "fsdp2" else held.gradients)
    gradients = held.gradients if trainer == "fsdp2" else 0
    return exists, exists + max(memory.prepare.total, memory.learn.total + gradients)


def _trainer(place: Place, trainer: str, work: Work) -> tuple[Any, Path]:
    """Returns a trainer, and the folder of its run."""
    spec = spec_of(work, TRAINERS[trainer], DTYPE)
    folder = new_folder(place, f"memory-{trainer}")
    return started(Alone(), spec, folder, model_in(place.folder, work)), folder


def _stand_in(place: Place) -> None:
    """Lets host memory take the place of a GPU's, but for the pages of files."""
    if place.stand_in:
        vars(offload)["is_on_device"] = torch.UntypedStorage.resizable


def _storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Returns the storages, each once."""
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    return [storage for storage in found.values() if storage.nbytes()]


def _bytes_there(tensors: Iterable[torch.Tensor]) -> int:
    """Returns the bytes of tensors that are on the device."""
    storages = _storages(tensors)
    return _bytes_of(storage for storage in storages if offload.is_on_device(storage))


def _bytes_of(storages: Iterable[torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in storages)


def _copy(storage: torch.UntypedStorage) -> torch.Tensor:
    view = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return view.to("cpu", copy=True)


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
