"""The driver's view of the trainer's ranks: prepares them as one group, and calls them together.

Consumes the registry of a run's actors and its calls; produces the ranks' answers. Every call to all ranks raises what
`ActorCalls.get` raises.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from yatt_core.actors.trainer import RankState
from yatt_core.cluster.metering import Interruptions
from yatt_core.engines.train.ranks.rendezvous import meeting_host
from yatt_core.errors import DataError, InfrastructureError, NumericError, StuckError
from yatt_core.protocols.receipts import (
    HIDDEN_SECONDS,
    BatchTask,
    CheckpointReceipt,
    InputsReceipt,
    PrepareReceipt,
)
from yatt_core.run_actors.actor_registry import TRAINER, ActorRegistry
from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.node_files import NodeFiles
from yatt_core.run_actors.rank_files import share_prepared
from yatt_core.run_actors.restoring import restore_ranks
from yatt_core.run_actors.watchdog import find_abandoned

log = logging.getLogger(__name__)


class TrainerRanks:
    """All ranks of one run under one term.

    start_seconds: for calls that may be queued behind the work of an earlier driver or the imports of a new process.
    """

    def __init__(
        self, calls: ActorCalls, registry: ActorRegistry, files: NodeFiles, term: int, branch: int, start_seconds: float
    ) -> None:
        self._calls = calls
        self._registry = registry
        self._files = files
        self._term = term
        self._branch = branch
        self._start_seconds = start_seconds
        self._disks: list[str] = []
        self._attempts = 0
        self._accumulating: list[dict[Any, str]] = []
        self._accumulated = -1

    @property
    def actors(self) -> list[Any]:
        """The ranks' actors."""
        return self._registry.of(TRAINER)

    @property
    def names(self) -> list[str]:
        """The ranks' names."""
        return self._registry.names_of(TRAINER)

    def all(self, method: str, *arguments: Any, seconds: float | None = None) -> list[Any]:
        """Returns what a method returns on each rank. seconds: time limit; None for the phase's own."""
        return self._calls.get_from_group(self._asked(method, *arguments), f"the trainer's ranks to {method}", seconds)

    def _asked(self, method: str, *arguments: Any) -> dict[Any, str]:
        """Calls a method on each rank; returns the calls with the ranks' names."""
        return {
            getattr(rank, method).remote(*arguments): name for rank, name in zip(self.actors, self.names, strict=True)
        }

    def first(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Returns what a method returns on the first rank."""
        reference = getattr(self.actors[0], method).remote(*arguments)
        name = f"{TRAINER}-0"
        return self._calls.get([reference], name, [name], seconds)[0]

    def mend(self, run_folder: Path, interruptions: Interruptions, avoid_nodes: frozenset[str]) -> tuple[str, ...]:
        """Recreates the existing ranks if one waits in vain for the others; returns the names of the new actors."""
        asked = {rank.environment.remote(): name for rank, name in zip(self.actors, self.names, strict=True)}
        abandoned = find_abandoned(
            store=self._registry.store,
            run_folder=run_folder,
            asked=asked,
            timeout=self._start_seconds,
            interruptions=interruptions,
        )
        if not abandoned:
            return ()
        log.warning("recreating the trainer's ranks because not all of them were called: %s", "; ".join(abandoned))
        return self._registry.recreate(TRAINER, avoid_nodes)

    def load(self, inputs: InputsReceipt, avoid_nodes: frozenset[str]) -> tuple[list[RankState], tuple[str, ...]]:
        """Prepares the ranks as one group; recreates a broken group once.

        Returns the ranks' states, and the names of actors that were created.
        """
        self._accumulating = []  # of an attempt that has failed
        created: tuple[str, ...] = ()
        try:
            standings = self._standings(inputs)
            whole = len({(rank.version, rank.group) for rank in standings}) == 1
            reason = "" if whole else f"the ranks are in different states: {standings}"
        except StuckError:
            raise
        except InfrastructureError as error:
            reason = str(error)
        if reason:
            log.warning("recreating the trainer's ranks: %s", reason)
            created = self._registry.recreate(TRAINER, avoid_nodes)
            standings = self._standings(inputs)
        return standings, created

    def settle(self, standings: list[RankState]) -> None:
        """Notes on whose disks the ranks are."""
        self._disks = [self._files.disk(rank.node) for rank in standings]

    def _standings(self, inputs: InputsReceipt) -> list[RankState]:
        """Returns the ranks' states; forms a group if there is none and initialises the weights if all lack them."""
        seconds = self._start_seconds
        self._registry.loaded(self.all("load", self._term, inputs, self._branch, seconds=seconds))
        standings: list[RankState] = self.all("standing", self._term, seconds=seconds)
        if not any(rank.group for rank in standings):
            address = self.first("rendezvous", meeting_host([rank.host for rank in standings]), seconds=seconds)
            self.all("connect", self._term, len(self.actors), address, seconds=seconds)
        if all(rank.version < 0 for rank in standings):
            self.all("initialise", self._term, seconds=seconds)
            standings = self.all("standing", self._term, seconds=seconds)
        return standings

    def accumulate(self, task: BatchTask) -> None:
        """Has the ranks add up the gradients of the shards that are sealed; `prepare` waits for it."""
        if task.key.iteration != self._accumulated:
            self._accumulating = []
        self._accumulated = task.key.iteration
        self._accumulating.append(self._asked("accumulate", task))

    def prepare(self, task: BatchTask) -> PrepareReceipt:
        """Computes what an iteration needs to learn; tells how much of what was begun before it nobody had to wait for."""
        pending = self._accumulating
        self._accumulating = []
        started = time.monotonic()
        worked = 0.0
        for asked in pending:
            try:
                worked += max(self._calls.get_from_group(asked, "the trainer's ranks to accumulate gradients"))
            except (DataError, NumericError) as error:
                # What was added is dropped, and `prepare` adds it again: it fails if that was more than a passing fault.
                log.warning(
                    "gradients of the first shards of iteration %d are added again: %s", self._accumulated, error
                )
        hidden = worked - (time.monotonic() - started)
        receipt: PrepareReceipt = self.all("prepare", task)[0]
        return replace(receipt, timing={**receipt.timing, HIDDEN_SECONDS: max(0.0, hidden)}) if pending else receipt

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> list[Any]:
        """Applies an iteration's optimizer steps; brings the prepared columns to disks that lack them."""
        if not self._files.are_shared:
            share_prepared(
                calls=self._calls,
                ranks=self.actors,
                names=self.names,
                disks=self._disks,
                term=self._term,
                prepared=prepared,
            )
        return self.all("learn", task, prepared)

    def copy_ahead(self, version: int) -> None:
        """Has the ranks begin to copy the tensors of a version for the next checkpoint, beside calls that only read."""
        self.all("copy_ahead", self._term, version)

    def begin_checkpoint(self, run: str, audit_head: str) -> None:
        """Has the tensors copied, unless they have been copied ahead, and published in the background.

        audit_head: head of the audit chain, recorded in the manifest.
        """
        self._attempts += 1
        apart = len(set(self._disks)) > 1
        self.all("begin_checkpoint", self._term, run, self._branch, audit_head, self._attempts, apart)

    def checkpoint_result(self, wait_seconds: float) -> CheckpointReceipt | None:
        """Returns the receipt of the pending checkpoint, whichever driver started it; None until it is durable."""
        seconds = self._calls.deadline + wait_seconds
        receipts: list[CheckpointReceipt | None] = self.all("checkpoint_result", wait_seconds, seconds=seconds)
        return receipts[0]

    def restore(self, folder: str, manifest_sha256: str, version: int, renew: bool) -> None:
        """Loads a checkpoint (`restoring`). Raises `DataError` if its files do not match the digest.

        renew: whether nodes with disks of their own replace damaged files too, not only missing ones.
        """
        checkpoint = (folder, manifest_sha256, version)
        disks = () if self._files.are_shared else self._disks
        restore_ranks(
            calls=self._calls,
            ranks=self.actors,
            names=self.names,
            term=self._term,
            checkpoint=checkpoint,
            disks=disks,
            renew=renew,
        )
