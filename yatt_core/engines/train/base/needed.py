"""What a rank reads of a checkpoint when it restores: whole tensors, or the rectangles that it holds.

Consumes the checkpoint's headers and what the engine says of its own rectangles. A rank on a node with a disk of its own
fetches nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from yatt_core.checkpoints.contents import (
    ADAPTERS,
    CRITIC,
    CRITIC_OPTIMIZER,
    OPTIMIZER,
    REFERENCE,
    WEIGHTS,
    open_tensors,
)
from yatt_core.engines.train.model.optimizer import MOMENTS
from yatt_core.engines.train.model.state_files import read_facts
from yatt_core.engines.train.roles.critic import Critic
from yatt_core.protocols.engines import NeededTensor
from yatt_core.spec.run import RunSpec
from yatt_core.wire.parts import Box

Rectangles = Iterable[tuple[str, Box]]
"""Rectangles of tensors, by the tensor's name; the name may occur several times."""


def needed_of(
    folder: Path, spec: RunSpec, own: Callable[[str], Rectangles | None], critic: Critic | None
) -> Iterator[NeededTensor]:
    """Yields what a rank reads of a checkpoint. Raises `DataError` if its headers cannot be read.

    own: returns the rank's rectangles of the weights, of the moments with a name, or of the reference.
    """
    facts = read_facts(folder)
    yield from _of(folder, WEIGHTS if spec.trainer.lora is None else ADAPTERS, own("weights"))
    if facts.optimizer_steps:
        yield from _moments(folder, OPTIMIZER, own)
    if spec.keeps_reference:
        yield from _of(folder, REFERENCE, own("reference"))
    if critic is not None:
        yield from _of(folder, CRITIC, critic.rectangles("weights"))
        if facts.critic_steps:
            yield from _moments(folder, CRITIC_OPTIMIZER, critic.rectangles)


def _moments(folder: Path, subfolder: str, own: Callable[[str], Rectangles | None]) -> Iterator[NeededTensor]:
    for kind in MOMENTS:
        found = own(kind)
        if found is None:
            yield from _of(folder, subfolder, None)
            return
        yield from (NeededTensor(subfolder, f"{kind}.{name}", box) for name, box in found)


def _of(folder: Path, subfolder: str, rectangles: Rectangles | None) -> Iterator[NeededTensor]:
    if rectangles is None:
        yield from (NeededTensor(subfolder, name) for name in open_tensors(folder, subfolder).shapes)
    else:
        yield from (NeededTensor(subfolder, name, box) for name, box in rectangles)
