"""The Ray actor of one device's rollout engine and judges: loads them, fences its callers, updates weights in place.

Consumes decode batches and questions to judges from controllers, and weights in buckets directly from the trainer's
ranks; produces responses and verdicts. It has one role at a time, assigned by the dispatcher.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from yatt_core.actors.call_kinds import version_part
from yatt_core.actors.holdings import own_holdings
from yatt_core.actors.presence import Presence
from yatt_core.actors.transfers import TransferEnd
from yatt_core.actors.use_meter import MemoryMeter, ProcessUse, UseMeter
from yatt_core.engines.registry import build_rollout_engine
from yatt_core.engines.rollout.incoming import WeightTaker
from yatt_core.engines.rollout.served.companions import Spanned
from yatt_core.engines.virtual.rollout import VirtualRolloutEngine
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.inputs.manifest import INPUTS
from yatt_core.judges.loading import held_verdicts, load_judges
from yatt_core.logs import actor_logs
from yatt_core.placement.actions import JUDGE, ROLLOUT
from yatt_core.placement.seen import Usage
from yatt_core.protocols.engines import RolloutEngine
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, Returned
from yatt_core.protocols.judges import Judge, JudgeRequest, Verdict
from yatt_core.protocols.pieces import hold_back
from yatt_core.protocols.receipts import BATCHES_BY_CHANCE, ActorIdentity, SyncReceipt
from yatt_core.protocols.transfers import HeldWeights, TransferTask
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.roles import device_judges
from yatt_core.spent_time import ENGINE, spent
from yatt_core.wire.parts import Rectangle


class RolloutActor:
    """One instance of the pool. Calls are served one at a time, in the order of arrival."""

    def __init__(self, spec_json: str, run_folder: str, instance: int, term: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        self._instance = instance
        self._engine: RolloutEngine | None = None
        self._judges: dict[str, Judge] = {}
        self._usage: deque[Usage] = deque()
        self._by_chance: tuple[str, ...] = ()
        self._resident = True
        self._taker: RolloutEngine | WeightTaker
        self._update_began = 0.0
        self._held = ""
        self._folder = Path(run_folder)
        self._model_folder = Path()
        self._identity = actor_logs(self._folder, f"rollout-{instance}", term)
        self._use = UseMeter()
        self._memory = MemoryMeter()
        grace = self._spec.recovery.grace_seconds
        self._presence = Presence(self._identity.name, term, grace)
        self._transfers = TransferEnd(self._identity.name, self._presence)

    def load(self, term: int, model_path: str, resident: bool) -> ActorIdentity:
        """Builds the engine and the judges unless they exist. The engine's weights arrive with the first update.

        resident: whether engine and judges, caches included, fit into memory together; if not, each sleeps
            while others load or work.
        """
        with self._presence.serving("load", term):
            self._resident = resident
            if self._engine is None:
                engine = build_rollout_engine(self._spec, model_path, self._folder / INPUTS, self._spanned(term))
                self._model_folder = Path(model_path)
                if not resident:
                    engine.sleep()
                self._judges = load_judges(self._spec, self._folder / INPUTS, device_judges(self._spec), not resident)
                self._by_chance = _batched_by_chance(self._spec, engine, self._judges)
                _require_exact(self._spec, self._by_chance)
                self._taker = self._taker_of(engine)
                self._engine = engine
                self._held = ""  # an engine that it replaces may have held a transfer
        return ActorIdentity(
            name=self._identity.name,
            pid=self._identity.pid,
            node=self._identity.node,
            engine=self._spec.rollout.engine.kind,
            capabilities={**self._engine.capabilities, BATCHES_BY_CHANCE: bool(self._by_chance)},
            holds=own_holdings(),
        )

    def _spanned(self, term: int) -> Spanned | None:
        """Returns the nodes of an engine that has several."""
        return None

    def _taker_of(self, engine: RolloutEngine) -> RolloutEngine | WeightTaker:
        """Returns the object that takes the weights from the trainer: the engine, unless only adapters are sent."""
        trainer = self._spec.trainer
        if trainer.lora is None or trainer.lora.sync == "merged":
            return engine
        from yatt_core.engines.adapters import share_of
        from yatt_core.engines.rollout.merging import MergingTaker

        return MergingTaker(engine, self._model_folder, share_of(trainer.lora), trainer.sync_bucket_bytes)

    def version(self, term: int) -> int:
        """Returns the version of the engine's weights; -1 while they are undefined."""
        with self._presence.serving("version", term):
            return self._ready().version

    def begin_update(self, term: int, version: int) -> None:
        """Prepares for a new version of the weights; they are undefined until the update ends."""
        with self._presence.serving("begin_update", term):
            self._ready()
            self._begin_update(version)

    def _begin_update(self, version: int) -> None:
        self._held = ""
        self._update_began = time.monotonic()
        self._taker.begin_update(version)

    def take_digest(self, term: int, digest: str) -> SyncReceipt:
        """Ends an update of a virtual engine, which holds nothing of its weights but their digest."""
        with self._presence.serving("take_digest", term):
            engine = self._ready()
            assert isinstance(engine, VirtualRolloutEngine)
            engine.take_digest(digest)
            return SyncReceipt(self._instance, engine.version, time.monotonic() - self._update_began)

    def host(self) -> str:
        """Returns the address of this actor's node in the cluster."""
        return self._transfers.host()

    def receive(self, term: int, task: TransferTask) -> SyncReceipt:
        """Takes a whole update directly from the trainer's ranks; once the first bucket has come, there is no way back.

        A failed transfer leaves the engine dirty, unless it failed before the first bucket.
        """
        from yatt_core.engines.sync.receiving import received_weights

        with self._presence.serving("receive", term), self._transfers.group(task) as group:
            self._ready()
            if task.base and self._held != task.base:
                raise InfrastructureError(f"rollout-{self._instance} does not hold the weights of transfer {task.base}")
            buckets = received_weights(group, task, self._spec.trainer.sync_bucket_bytes, self._taker.buffers)
            first = next(buckets)
            self._begin_update(task.version)
            sizes = list[int]()
            for bucket in chain([first], buckets):
                self._taker.take(bucket)
                sizes.append(bucket.nbytes)
            self._taker.end_update()
            self._held = task.name
            return SyncReceipt(
                instance=self._instance,
                version=task.version,
                seconds=time.monotonic() - self._update_began,
                bytes=sum(sizes),
                buckets=len(sizes),
                delta=bool(task.base),
            )

    def held_transfer(self, term: int) -> str:
        """Returns the name of the direct transfer whose weights the engine holds; empty if there is none."""
        with self._presence.serving("held_transfer", term):
            return self._held

    def held_weights(self, term: int, rectangles: Sequence[Rectangle]) -> HeldWeights:
        """Returns digests of rectangles of the engine's weights."""
        with self._presence.serving("held_weights", term):
            engine = self._ready()
            found = engine.rectangle_digests(rectangles) if engine.version >= 0 else None
            return HeldWeights(engine.version, None if found is None else dict(zip(rectangles, found, strict=True)))

    def generate(self, term: int, request: GenerateRequest, number: int) -> Iterator[GeneratePiece | Returned]:
        """Answers a decode batch and yields finished pieces while it works on the rest.

        number: of the grant by which the call was made.
        """
        with self._presence.serving("generate", term), spent(ENGINE, version_part(request.weight_version)):
            started = time.monotonic()
            lengths = list[int]()
            for piece in hold_back(self._ready().stream(request)):
                lengths += piece.result.lengths.tolist()
                yield piece
            self._book(ROLLOUT, lengths, time.monotonic() - started)

    def judge(self, term: int, part: str, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Asks the judge of a reward part and yields finished verdicts while it works on the rest."""
        with self._presence.serving("judge", term):
            self._ready()
            started = time.monotonic()
            lengths = list[int]()
            read = 0
            for verdicts in held_verdicts(self._judges[part].judge(request)):
                judgements = [one for verdict in verdicts for one in verdict.judgements]
                lengths += [one.tokens for one in judgements]
                read += sum(one.prompt_tokens for one in judgements)
                yield verdicts
            self._book(JUDGE, lengths, time.monotonic() - started, read)

    def switch(self, term: int, role: str, starting: bool) -> None:
        """Switches to another role. Unless all engines fit into memory, the previous role's sleep, then the new ones wake."""
        with self._presence.serving("switch", term):
            engine = self._ready()
            if not self._resident:
                rolling = [engine]
                judging = list(self._judges.values())
                leaving, joining = (rolling, judging) if role == JUDGE else (judging, rolling)
                self._put_to_sleep(leaving)
                for each in joining:
                    each.wake()

    def rest(self, term: int) -> None:
        """Puts the engine and the judges to sleep until their next call."""
        with self._presence.serving("rest", term):
            self._put_to_sleep([self._ready(), *self._judges.values()])

    def _put_to_sleep(self, sleepers: Iterable[RolloutEngine | Judge]) -> None:
        for sleeper in sleepers:
            sleeper.sleep()

    def usage(self, term: int) -> tuple[Usage, ...]:
        """Returns the work done since the last call."""
        with self._presence.serving("usage", term):
            # Removed one at a time, because another thread may be appending.
            return tuple(self._usage.popleft() for _ in range(len(self._usage)))

    def process_use(self, term: int) -> ProcessUse:
        """Returns how busy the device was since the last call, and what the process and its children hold."""
        with self._presence.serving("process_use", term):
            return ProcessUse(self._use.read(), self._memory.read(), self._presence.times.take())

    def _book(self, role: str, lengths: Sequence[int], seconds: float, read: int = 0) -> None:
        """Records a batch's work: one step per token of its longest sequence, each over the unfinished sequences.

        read: number of prompt tokens read, which is all the work of a reward model.
        """
        if any(lengths):
            steps = max(lengths)
            sequence_steps = sum(lengths)
            row = Usage(self._instance, role, steps=steps, sequence_steps=sequence_steps, decode_s=seconds)
            self._usage.append(row)
        elif read:
            self._usage.append(Usage(self._instance, role, prompt_tokens=read, prefill_s=seconds))

    def _ready(self) -> RolloutEngine:
        if self._engine is None:
            raise InfrastructureError(f"rollout-{self._instance} was called before it was loaded")
        return self._engine


def _batched_by_chance(spec: RunSpec, engine: RolloutEngine, judges: Mapping[str, Judge]) -> tuple[str, ...]:
    """Returns the places of the spec whose engines' answers depend on what they batch by chance.

    Continuous batching puts together what has just arrived. Other engines decode planned batches with fixed members,
    which a repetition decodes again as they were.
    """
    kinds = {part.name: part.engine for part in device_judges(spec) if isinstance(part, GenerativePart)}
    continuous: dict[str, RolloutEngine | Judge] = {
        f"the judge of reward part {name!r}": judge
        for name, judge in judges.items()
        if getattr(kinds.get(name), "continuous", False)
    }
    if spec.rollout.engine.continuous:
        continuous["rollout.engine"] = engine
    return tuple(place for place, part in continuous.items() if not part.capabilities.get("batch_invariant", False))


def _require_exact(spec: RunSpec, by_chance: Sequence[str]) -> None:
    """Raises `ConfigurationError` if a run that must be exact has engines whose answers depend on what they batch by chance."""
    if spec.must_be_exact and by_chance:
        raise ConfigurationError(
            f"exact: must be false or auto, because on this device {' and '.join(by_chance)} may answer differently in another "
            "batch; or choose kind: torch without continuous, which decodes planned batches"
        )
