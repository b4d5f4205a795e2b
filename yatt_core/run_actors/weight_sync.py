"""Transfers the weights of a version from the trainer's ranks directly to rollout engines.

Consumes handles of actors; produces receipts. Each rank sends its own parts to all engines, in one call to each actor. If
a transfer stops anywhere, the engines that received anything stay dirty and are synced again from the first bucket, with
new connections. Virtual engines hold nothing of their weights but the digest, which the trainer's ranks compute and this
process passes on; they are dirty meanwhile.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from yatt_core.engines.train.ranks.rendezvous import meeting_host
from yatt_core.errors import InfrastructureError, ReplayError
from yatt_core.protocols.receipts import SyncReceipt
from yatt_core.protocols.transfers import SyncMember, TransferTask
from yatt_core.run_actors.actor_registry import TRAINER, ActorRegistry
from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.instances import ROLLOUT
from yatt_core.run_actors.sync_parties import SyncParties
from yatt_core.run_actors.weight_check import compare_weights, named
from yatt_core.spec.sections.trainer import TrainerSpec, VirtualTrainer

log = logging.getLogger(__name__)


class WeightSync:
    """The transfers of one driver."""

    def __init__(self, calls: ActorCalls, registry: ActorRegistry, term: int, trainer: TrainerSpec) -> None:
        self._calls = calls
        self._registry = registry
        self._term = term
        self._virtual = isinstance(trainer.engine, VirtualTrainer)
        self._delta = trainer.sync == "delta"
        self._meeting: tuple[tuple[SyncMember, ...], str] = ((), "")
        self._synced: tuple[tuple[str, ...], int] = ((), -1)
        """The engines that all hold a version, by Ray's ids, since this driver has synced them."""

    def sync(self, version: int) -> list[SyncReceipt]:
        """Transfers a version's weights to all rollout engines that lack them; returns those engines' receipts.

        Raises `InfrastructureError` if an actor is lost during the transfer or the weights do not match the engines'
        model.
        """
        lacking = self._lacking(version)
        self._synced = ((), -1)  # unless all of them succeed
        receipts = list[SyncReceipt]()
        if lacking:
            receipts = (
                self._pass_digest(version, self.parties(lacking)) if self._virtual else self._send(version, lacking)
            )
        self._synced = self._engine_ids(), version
        return receipts

    def _lacking(self, version: int) -> list[int]:
        """Returns the places of the engines that do not hold a version. Those that this driver has synced need not be asked."""
        engines = self._registry.of(ROLLOUT)
        known, held_by_all = self._synced
        if known == self._engine_ids() and held_by_all != version:
            return list(range(len(engines)))
        asked = [engine.version.remote(self._term) for engine in engines]
        held = self._calls.get(asked, "the rollout engines' versions", self._registry.names_of(ROLLOUT))
        return [place for place, has in enumerate(held) if has != version]

    def _engine_ids(self) -> tuple[str, ...]:
        return tuple(engine._actor_id.hex() for engine in self._registry.of(ROLLOUT))

    def check(self, version: int, committed: str | None) -> None:
        """Compares the trainer's weights with their commit, and the engines' with the trainer's (`weight_check`).

        committed: digest of the version's weights in its commit; None if there is none.

        Raises `ReplayError` if the trainer's differ, and `InfrastructureError` if an engine's do; this engine is dirty
        from then on, so that it is synced again.
        """
        parties = self.parties(range(len(self._registry.of(ROLLOUT))))
        if committed is not None:
            own = self._digest(version, parties)
            if own != committed:
                raise ReplayError(
                    f"the trainer's weights of version {version} are {own}, but the commit has {committed}"
                )
        if self._virtual:
            return
        found = compare_weights(self._calls.get, self._term, parties)
        if not found.differing:
            return
        handles = dict(zip(parties.engine_names, parties.engines, strict=True))
        names = [engine.name for engine in found.differing]
        self._synced = ((), -1)
        dirty = [handles[name].begin_update.remote(self._term, found.trainer_version) for name in names]
        self._calls.get(dirty, "the rollout engines to drop wrong weights", names)
        raise InfrastructureError(
            f"weights of version {found.trainer_version} differ from the trainer's: {named(found.differing)}"
        )

    def parties(self, places: Sequence[int]) -> SyncParties:
        """Returns all ranks and some of the rollout engines."""
        engines = self._registry.of(ROLLOUT)
        names = self._registry.names_of(ROLLOUT)
        ranks = self._registry.of(TRAINER)
        rank_names = self._registry.names_of(TRAINER)
        return SyncParties(ranks, [engines[i] for i in places], rank_names, [names[i] for i in places])

    def _digest(self, version: int, parties: SyncParties) -> str:
        """Returns the digest of the trainer's weights, for which all ranks are needed."""
        asked = [rank.weights_digest.remote(self._term, version) for rank in parties.ranks]
        return str(self._calls.get(asked, "the digest of the trainer's weights", parties.rank_names)[0])

    def _pass_digest(self, version: int, parties: SyncParties) -> list[SyncReceipt]:
        """Updates virtual engines."""
        names = parties.engine_names
        asked = [engine.begin_update.remote(self._term, version) for engine in parties.engines]
        self._calls.get(asked, "the rollout engines to prepare for new weights", names)
        digest = self._digest(version, parties)
        asked = [engine.take_digest.remote(self._term, digest) for engine in parties.engines]
        return self._calls.get(asked, "the rollout engines to take the digest of new weights", names)

    def _send(self, version: int, lacking: Sequence[int]) -> list[SyncReceipt]:
        """Sends only changes to the engines that hold what the ranks sent last, and everything to the others."""
        name = f"version {version}, {uuid.uuid4().hex}"
        base, holding = self._base(lacking) if self._delta else ("", [])
        receipts = self._transfer(version, name, self.parties(holding), base) if holding else []
        if others := [place for place in lacking if place not in holding]:
            receipts += self._transfer(version, name, self.parties(others), "")
        return sorted(receipts, key=lambda receipt: receipt.instance)

    def _base(self, lacking: Sequence[int]) -> tuple[str, list[int]]:
        """Returns the last transfer whose weights every rank still keeps, and the engines that hold the same weights."""
        parties = self.parties(lacking)
        if not self._registry.capable(parties.engine_names, "delta_sync"):
            return "", []
        asked = [rank.sent_weights.remote(self._term) for rank in parties.ranks]
        sent = set(self._calls.get(asked, "what the trainer's ranks have sent", parties.rank_names))
        asked = [engine.held_transfer.remote(self._term) for engine in parties.engines]
        held = self._calls.get(asked, "what the rollout engines hold", parties.engine_names)
        base = sent.pop() if len(sent) == 1 else ""
        return base, [place for place, name in zip(lacking, held, strict=True) if base and name == base]

    def _transfer(self, version: int, name: str, parties: SyncParties, base: str) -> list[SyncReceipt]:
        """Has each rank send and each engine receive, in one call each. name, base: as in `TransferTask`."""
        members = tuple(
            SyncMember(name, handle._actor_id.hex())
            for name, handle in zip(parties.names, parties.handles, strict=True)
        )
        address = self._met(members, parties)
        count = len(parties.ranks)
        task = TransferTask(
            term=self._term,
            version=version,
            name=name,
            address=address,
            ranks=members[:count],
            engines=members[count:],
            base=base,
        )
        # Until all of them have succeeded, there are no connections to use again.
        self._meeting = ((), "")
        asked = [engine.receive.remote(self._term, task) for engine in parties.engines]
        asked += [rank.send.remote(self._term, task) for rank in parties.ranks]
        names = [*parties.engine_names, *parties.rank_names]
        what = "the trainer's ranks to send and the rollout engines to receive weights"
        answers = self._calls.get_from_group(dict(zip(asked, names, strict=True)), what)
        receipts: list[SyncReceipt] = answers[: len(parties.engines)]
        self._meeting = members, address
        return receipts

    def _met(self, members: tuple[SyncMember, ...], parties: SyncParties) -> str:
        """Returns where these members meet: where they met the last time, or at a new address."""
        if members == self._meeting[0]:
            return self._meeting[1]
        asked = [handle.host.remote() for handle in parties.handles]
        host = meeting_host(self._calls.get(asked, "the addresses of ranks and engines", parties.names))
        first = parties.rank_names[:1]
        serving = [parties.ranks[0].serve_transfers.remote(self._term, host)]
        return str(self._calls.get(serving, f"{first[0]} to serve a meeting", first)[0])
