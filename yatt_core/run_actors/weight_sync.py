"""Transfers the weights of a version from the trainer's ranks directly to rollout engines.

Consumes handles of actors; produces receipts. Each rank sends its own parts to all engines, in one call to each actor. If
a transfer stops anywhere, the engines that received anything stay dirty and are synced again from the first bucket, with
new connections. Virtual engines hold nothing of their weights but the digest, which the trainer's ranks compute and this
process passes on; they are dirty meanwhile.
"""

from __future__ import annotations

import uuid

from yatt_core.engines.train.ranks.rendezvous import meeting_host
from yatt_core.errors import InfrastructureError, ReplayError
from yatt_core.protocols.receipts import SyncReceipt
from yatt_core.protocols.transfers import SyncMember, TransferTask
from yatt_core.run_actors.actor_registry import TRAINER, ActorRegistry
from yatt_core.run_actors.calls import ActorCalls
from yatt_core.run_actors.instances import ROLLOUT
from yatt_core.run_actors.weight_check import Actors, compare_weights, named
from yatt_core.spec.sections.trainer import TrainerSpec, VirtualTrainer


class WeightSync:
    """The transfers of one driver."""

    def __init__(self, calls: ActorCalls, registry: ActorRegistry, term: int, trainer: TrainerSpec) -> None:
        self._calls = calls
        self._registry = registry
        self._term = term
        self._virtual = isinstance(trainer.engine, VirtualTrainer)
        self._delta = trainer.sync == "delta"
        self._meeting: tuple[str, tuple[SyncMember, ...]] = ("", ())
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
            receipts = self._pass_digest(version, lacking) if self._virtual else self._send(version, lacking)
        self._synced = self._engine_ids(), version
        return receipts

    def _lacking(self, version: int) -> Actors:
        """Returns the engines that do not hold a version. Those that this driver has synced need not be asked."""
        engines = self._named(ROLLOUT)
        known, held_by_all = self._synced
        if known == self._engine_ids() and held_by_all != version:
            return engines
        asked = [engine.version.remote(self._term) for engine in engines.values()]
        held = self._calls.get(asked, "the rollout engines' versions", list(engines))
        return {name: engines[name] for name, has in zip(engines, held, strict=True) if has != version}

    def _engine_ids(self) -> tuple[str, ...]:
        return tuple(engine._actor_id.hex() for engine in self._registry.of(ROLLOUT))

    def _named(self, role: str) -> Actors:
        return dict(zip(self._registry.names_of(role), self._registry.of(role), strict=True))

    def check(self, version: int, committed: str | None) -> None:
        """Compares the trainer's weights with their commit, and the engines' with the trainer's (`weight_check`).

        committed: digest of the version's weights in its commit; None if there is none.

        Raises `ReplayError` if the trainer's differ, and `InfrastructureError` if an engine's do; this engine is dirty
        from then on, so that it is synced again.
        """
        if committed is not None:
            own = self._digest(version)
            if own != committed:
                raise ReplayError(
                    f"the trainer's weights of version {version} are {own}, but the commit has {committed}"
                )
        if self._virtual:
            return
        engines = self._named(ROLLOUT)
        found = compare_weights(self._calls.get, self._term, self._named(TRAINER), engines)
        if not found.differing:
            return
        names = [engine.name for engine in found.differing]
        self._synced = ((), -1)
        dirty = [engines[name].begin_update.remote(self._term, found.trainer_version) for name in names]
        self._calls.get(dirty, "the rollout engines to drop wrong weights", names)
        raise InfrastructureError(
            f"weights of version {found.trainer_version} differ from the trainer's: {named(found.differing)}"
        )

    def _digest(self, version: int) -> str:
        """Returns the digest of the trainer's weights, for which all ranks are needed."""
        ranks = self._named(TRAINER)
        asked = [rank.weights_digest.remote(self._term, version) for rank in ranks.values()]
        return str(self._calls.get(asked, "the digest of the trainer's weights", list(ranks))[0])

    def _pass_digest(self, version: int, engines: Actors) -> list[SyncReceipt]:
        """Updates virtual engines."""
        names = list(engines)
        asked = [engine.begin_update.remote(self._term, version) for engine in engines.values()]
        self._calls.get(asked, "the rollout engines to prepare for new weights", names)
        digest = self._digest(version)
        asked = [engine.take_digest.remote(self._term, digest) for engine in engines.values()]
        return self._calls.get(asked, "the rollout engines to take the digest of new weights", names)

    def _send(self, version: int, lacking: Actors) -> list[SyncReceipt]:
        """Sends only changes to the engines that hold what the ranks sent last, and everything to the others."""
        name = f"version {version}, {uuid.uuid4().hex}"
        base, holding = self._base(lacking) if self._delta else ("", {})
        receipts = self._transfer(version, name, holding, base) if holding else []
        if others := {each: engine for each, engine in lacking.items() if each not in holding}:
            receipts += self._transfer(version, name, others, "")
        return sorted(receipts, key=lambda receipt: receipt.instance)

    def _base(self, lacking: Actors) -> tuple[str, Actors]:
        """Returns the last transfer whose weights every rank still keeps, and the engines that hold the same weights."""
        engines = list(lacking)
        if not self._registry.capable(engines, "delta_sync"):
            return "", {}
        ranks = self._named(TRAINER)
        asked = [rank.sent_weights.remote(self._term) for rank in ranks.values()]
        sent = set(self._calls.get(asked, "what the trainer's ranks have sent", list(ranks)))
        asked = [engine.held_transfer.remote(self._term) for engine in lacking.values()]
        held = self._calls.get(asked, "what the rollout engines hold", engines)
        base = sent.pop() if len(sent) == 1 else ""
        return base, {each: lacking[each] for each, name in zip(engines, held, strict=True) if base and name == base}

    def _transfer(self, version: int, name: str, engines: Actors, base: str) -> list[SyncReceipt]:
        """Has each rank send and each engine receive, in one call each. name, base: as in `TransferTask`."""
        ranks = self._named(TRAINER)
        address, members = self._met(ranks, engines)
        task = TransferTask(
            term=self._term,
            version=version,
            name=name,
            address=address,
            ranks=members[: len(ranks)],
            engines=members[len(ranks) :],
            base=base,
        )
        # Until all of them have succeeded, there are no connections to use again.
        self._meeting = ("", ())
        asked = {engine.receive.remote(self._term, task): each for each, engine in engines.items()}
        asked |= {rank.send.remote(self._term, task): each for each, rank in ranks.items()}
        what = "the trainer's ranks to send and the rollout engines to receive weights"
        receipts: list[SyncReceipt] = self._calls.get_from_group(asked, what)[: len(engines)]
        self._meeting = address, members
        return receipts

    def _met(self, ranks: Actors, engines: Actors) -> tuple[str, tuple[SyncMember, ...]]:
        """Returns where these actors meet, which is where they met the last time or a new address, and the members."""
        everyone = {**ranks, **engines}
        members = tuple(SyncMember(name, handle._actor_id.hex()) for name, handle in everyone.items())
        if members == self._meeting[1]:
            return self._meeting
        asked = [handle.host.remote() for handle in everyone.values()]
        host = meeting_host(self._calls.get(asked, "the addresses of ranks and engines", list(everyone)))
        first, server = next(iter(ranks.items()))
        serving = [server.serve_transfers.remote(self._term, host)]
        return str(self._calls.get(serving, f"{first} to serve a meeting", [first])[0]), members
