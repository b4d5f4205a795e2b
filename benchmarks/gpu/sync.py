"""Checks of what processes on GPUs send each other: NCCL, weights through the host, through shared memory, and changes alone.

Consumes the GPUs. Where cores stand in for them, gloo takes the place of NCCL, and host memory that of the memory of a GPU.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import distributed

from benchmarks.gpu.claims import Finding, Place
from benchmarks.gpu.courses import Alone, started
from benchmarks.gpu.places import new_folder, sizes_at
from benchmarks.gpu.transfers import Options, Taken, transfers_between
from benchmarks.gpu.work import TRAINERS, model_in, spec_of
from yatt_core.engines.device import own_device
from yatt_core.engines.rectangles import part_digests
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.sync.group import MEMORY
from yatt_core.engines.sync.routes import GLOO, NCCL
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.engines.train.ranks.process_group import close_process_group, open_process_group
from yatt_core.spec.weights import type_sent

DTYPE = "bfloat16"
LEARNING_RATE = 1e-6
NUMBERS = 1024


def group_of_one(place: Place) -> Finding:
    """Opens the process-wide group of one rank as FSDP2 and Megatron-Core do, and uses it on this process's device."""
    world = Collective()
    world.connect(0, 1, "", own_device())
    open_process_group(world)
    device = own_device()
    sent = torch.arange(NUMBERS, dtype=torch.float32, device=device)
    summed = sent.clone()
    distributed.all_reduce(summed)
    gathered = torch.empty_like(sent)
    distributed.all_gather_into_tensor(gathered, sent)
    distributed.broadcast(summed, 0)
    right = torch.equal(summed, sent) and torch.equal(gathered, sent)
    close_process_group()
    backend = GLOO if place.stand_in else NCCL
    return Finding(right, f"{backend}: {'right' if right else 'wrong'} numbers")


def weights_pass_the_host(place: Place) -> Finding:
    """Hands an engine the weights as arrays in host memory."""
    work = sizes_at(place).bits
    model = model_in(place.folder, work)
    spec = spec_of(work, None, DTYPE)
    trainer = started(Alone(), spec, new_folder(place, "host-sync"), model)
    engine = build_rollout_engine(spec, str(model), model)
    engine.update_weights(dict(trainer.stream_weights()), 0)
    expected = part_digests(trainer.sync_parts(), type_sent(spec))
    found = engine.rectangle_digests(list(expected)) or []
    differing = sum(one != other for one, other in zip(found, expected.values(), strict=True))
    return Finding(not differing, f"{differing} of {len(expected)} tensors differ")


def weights_are_borrowed(place: Place) -> Finding:
    """Sends weights to a process on the same GPU."""
    return _arrived(_shared(place, changes=False), MEMORY, "memory_sync_gb_s")


def changes_are_borrowed(place: Place) -> Finding:
    """Sends changes to a process on the same GPU."""
    return _fewer(_shared(place, changes=True), MEMORY)


def weights_go_by_nccl(place: Place) -> Finding:
    """Sends weights to a process on a second GPU."""
    return _arrived(_apart(place, changes=False), GLOO if place.stand_in else NCCL, "nccl_sync_gb_s")


def changes_go_by_nccl(place: Place) -> Finding:
    """Sends changes to a process on a second GPU."""
    return _fewer(_apart(place, changes=True), GLOO if place.stand_in else NCCL)


@cache
def _shared(place: Place, changes: bool) -> tuple[Taken, ...]:
    return _sent(place, (place.devices[0], place.devices[0]), changes, shared=True)


@cache
def _apart(place: Place, changes: bool) -> tuple[Taken, ...]:
    return _sent(place, place.devices[:2], changes, shared=False)


def _sent(place: Place, devices: tuple[str, ...], changes: bool, shared: bool) -> tuple[Taken, ...]:
    work = sizes_at(place).bits
    return transfers_between(
        devices=devices,
        folder=new_folder(place, "transfers"),
        model=model_in(place.folder, work),
        spec=spec_of(work, TRAINERS["torch"], DTYPE, learning_rate=LEARNING_RATE),
        options=Options(learns=work if changes else None, lends_host_memory=shared and place.stand_in),
    )


def _arrived(found: tuple[Taken, ...], way: str, rate: str) -> Finding:
    """Compares digests, and the way that was taken. rate: the name of the figure of gigabytes per second."""
    trainer, engine = found
    same = bool(trainer.digests) and engine.digests == trainer.digests
    seconds = min(max(each) for each in zip(trainer.seconds, engine.seconds, strict=True))
    said = f"by {engine.way}, {len(trainer.digests)} tensors, {'the same' if same else 'other'} digests"
    return Finding(same and engine.way == way, said, {rate: engine.nbytes / seconds / 1e9})


def _fewer(found: tuple[Taken, ...], way: str) -> Finding:
    """Compares digests after a transfer of changes, and its bytes with those of all weights."""
    trainer = found[0]
    share = trainer.changed_bytes / trainer.nbytes
    arrived = _arrived(found, way, "whole_gb_s")
    return Finding(
        holds=arrived.holds and share < 1.0,
        said=f"{arrived.said}; {share:.3f} of the bytes of all weights",
        figures={"delta_bytes_over_model": share},
    )
