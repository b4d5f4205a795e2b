"""What a driver finds once its actors are ready: the versions of the weights that they hold."""

from __future__ import annotations

from dataclasses import dataclass

from yatt_core.keys import WorkKey


@dataclass(frozen=True, slots=True)
class ActorsState:
    """The state of the actors once they are ready.

    trainer_version: version of the ranks' weights; -1 if the ranks are new or have no usable weights.
    trainer_key: the key of the last applied update.
    engine_versions: version of each engine's weights; -1 for an engine that needs weights.
    created: the names of the new actors.
    """

    trainer_version: int
    trainer_key: WorkKey | None
    engine_versions: tuple[int, ...]
    checkpoint_in_flight: bool
    created: tuple[str, ...]
