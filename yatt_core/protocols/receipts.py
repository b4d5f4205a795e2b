"""The messages between driver and actors: tasks and receipts, never tensors, texts or tokens.

All of them are small, immutable and picklable. Paths are relative to the run folder. Receipts carry counts, sums
and digests, so that the driver's traffic stays below 1 KB per sample, whatever the size of the sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from yatt_core.algorithms.moments import RewardMoments
from yatt_core.keys import WorkKey
from yatt_core.protocols.judges import ScoreEffort


@dataclass(frozen=True, slots=True)
class PromptRef:
    """A drawn prompt: its ordinal in the run's stream, and its position in its source's endless seeded order.

    source: index of its source; if a curriculum divides sources, of its pool.
    """

    ordinal: int
    source: int
    position: int


@dataclass(frozen=True, slots=True)
class PromptPool:
    """A pool of training prompts: a source, or its prompts with one value of `data.curriculum.field`.

    name: unique among the run's pools.
    source: index of its source.
    """

    name: str
    source: int
    size: int


@dataclass(frozen=True, slots=True)
class InputsReceipt:
    """The run's inputs, materialised once: prompts, tokenizer, initial model.

    folder: relative to the run folder.
    model_path: absolute; empty for a virtual run, which has no model.
    over_long: number of prompts that were left out or cut because they were too long.
    pools: the pools of a curriculum; empty without one.
    left_out: for people: rows that are not trained on, because their prompts are equal to held-out ones.
    """

    folder: str
    model_path: str
    manifest_sha256: str
    data_digest: str
    train_prompts: int
    held_out_prompts: int
    probe_prompts: int
    vocabulary: int
    parameters: int
    over_long: int = 0
    pools: tuple[PromptPool, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def prompts(self) -> int:
        """Number of all prompts."""
        return self.train_prompts + self.held_out_prompts + self.probe_prompts


@dataclass(frozen=True, slots=True, order=True)
class ShardPlace:
    """A shard of a branch: where a group was sealed."""

    iteration: int
    wave: int
    shard: int


@dataclass(frozen=True, slots=True)
class ShardRef:
    """A sealed shard as named in the ledger.

    without: ordinals of prompts whose groups are not read from it, since another shard of the task has them as they are learnt.
    """

    folder: str
    manifest_sha256: str
    without: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceTask:
    """How the responses to a prompt go on.

    started: iteration in which the first tokens were, or are, drawn; the seeds depend on it.
    tokens: the most new tokens of a response; None: as many as end it.
    place, sealed: the shard that has what is drawn so far; None if nothing is.
    kept: the most tokens of a response that are kept of it, so that one that ended behind them goes on; None: all.
    """

    started: int
    tokens: int | None
    place: ShardPlace | None = None
    sealed: ShardRef | None = None
    kept: int | None = None


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Asks for the experience of one logical shard, generated with the weights of a version.

    writers: how many writers the shard may have had under this term, on disks that this one's controller cannot see.
    slices: of each prompt, how its responses go on; empty if they are drawn whole. Those that go on come before new ones.
    """

    key: WorkKey
    term: int
    prompts: tuple[PromptRef, ...]
    weight_version: int
    writers: int = 0
    slices: tuple[SliceTask, ...] = ()


JUDGE_TOKENS = "judge_tokens"
JUDGE_PROMPT_TOKENS = "judge_prompt_tokens"
"""Keys in a shard's timing: tokens that judges generated and read for it."""
PEAK_BYTES = "peak_bytes_in_flight"
"""Key in a shard's timing: its controller's peak of bytes in flight since the controller was asked for its shards."""


LEAST_COMPARED = 2
"""Responses with a score that a group needs, if others have none, for them to be compared."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts on which dynamic sampling and curricula base their decisions: one entry per prompt, in order of ordinal.

    tokens: the tokens of all responses to the prompt.
    reward_min, reward_max: over the responses that have a score; 0 without any.
    correct: number of correct responses; empty in shards of older versions.
    scored: number of responses that have a score; empty if all have one.
    """

    reward_min: tuple[float, ...] = ()
    reward_max: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()
    correct: tuple[int, ...] = ()
    scored: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """What a round has made of a shard's prompts: one entry per prompt, in order of ordinal.

    completed: the most new tokens of one of its responses if all have ended; 0 otherwise.
    scored: number of responses that have a score, if all have ended.
    lengths: tokens of each of its responses so far.
    """

    completed: tuple[int, ...] = ()
    scored: tuple[int, ...] = ()
    lengths: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class LearntFacts:
    """Facts about a complete group, from which the metrics of the iteration that learns from it are made.

    sums: additive statistics of its samples.
    tokens: the policy's tokens by the version of the weights that they were drawn under.
    """

    sums: Mapping[str, float]
    tokens: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ShardWork:
    """The work of generating and judging samples, in tokens; one entry per sample, by prompt ordinal and sample.

    ordinals: the ordinals of the samples' prompts.
    judged: tokens of each judgement of each sample, all judges concatenated.
    read: tokens of the sample that judges read, counted once each.
    goes_on: with slices, whether prompt_tokens has tokens of the sample that were drawn before; empty if none has.
    """

    ordinals: tuple[int, ...] = ()
    prompt_tokens: tuple[int, ...] = ()
    response_tokens: tuple[int, ...] = ()
    judged: tuple[tuple[int, ...], ...] = ()
    read: tuple[int, ...] = ()
    goes_on: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """A finished shard, whose manifest is durable.

    group_digests: 32 bytes per prompt, in order of ordinal; with slices, those of the groups that go on follow the others'.
    sums: additive statistics of the samples (class result); lengths are in response tokens.
    timing: seconds by stage, and `PEAK_BYTES` (class timing).
    adopted: whether the shard was found sealed rather than produced now.
    efforts: the slowest and the dearest of the scores that endpoints gave (class timing).
    slices: None if responses are drawn whole.
    """

    key: WorkKey
    term: int
    folder: str
    manifest_sha256: str
    prompts: int
    samples: int
    tokens: int
    group_digests: bytes
    sums: Mapping[str, float]
    timing: Mapping[str, float]
    adopted: bool = False
    groups: GroupFacts = GroupFacts()
    efforts: tuple[ScoreEffort, ...] = ()
    slices: SliceFacts | None = None


@dataclass(frozen=True, slots=True)
class EvaluateTask:
    """Asks for the answers to a slice of the held-out tasks.

    only: indexes of the tasks that are wanted, here or in another slice; None for all.
    """

    key: WorkKey
    term: int
    start: int
    stop: int
    weight_version: int
    only: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The answers to a held-out task.

    samples, correct: numbers of answers that have a score, and of correct ones.
    reward: the mean reward of the answers that have a score; 0 without any.
    majority: accuracy of the most frequent answer; None without a vote.
    unscored: number of answers without a score, which count nowhere else.
    """

    prompt_id: str
    source: int
    samples: int
    correct: int
    reward: float
    majority: float | None = None
    unscored: int = 0


@dataclass(frozen=True, slots=True)
class EvaluateReceipt:
    """The results of the held-out tasks that were answered, in order.

    They are not summed here: the last bit of a sum over parts would depend on the number of controllers.

    rows: indexes of the tasks among all held-out tasks.
    total: number of all held-out tasks.
    """

    key: WorkKey
    tasks: tuple[TaskResult, ...]
    rows: tuple[int, ...]
    total: int


@dataclass(frozen=True, slots=True)
class SftReceipt:
    """The result of supervised fine-tuning."""

    steps: int
    loss: float
    probe_accuracy: float
    seconds: float
    weights_digest: str


@dataclass(frozen=True, slots=True)
class Admission:
    """The groups of an iteration that an update learns from, by prompt ordinal, ascending.

    padding: groups that fill up the batch and are masked.
    keep: number of samples kept at each end of a group's sorted rewards; None keeps all.
    """

    groups: tuple[int, ...]
    padding: tuple[int, ...] = ()
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class BatchTask:
    """An iteration's sealed experience, to prepare or learn from; shards are in canonical order.

    admission: the groups to use; None for all.
    partial: whether the admission also names groups of other shards, which count elsewhere.
    rows: the drawn prompts, in a run that learns from its data without sampling, which has no shards then; or the draw of a
        workload of one's own, of which samplers may have sealed shards.
    reward_moments: moments of the rewards of all earlier iterations, which `prepare` may use to scale rewards.
    coefficients: adaptive coefficients of the objective by name, for `prepare`.
    """

    key: WorkKey
    term: int
    shards: tuple[ShardRef, ...]
    admission: Admission | None = None
    reward_moments: RewardMoments = field(default_factory=RewardMoments)
    coefficients: Mapping[str, float] = field(default_factory=dict)
    rows: tuple[PromptRef, ...] = ()
    partial: bool = False


@dataclass(frozen=True, slots=True)
class SampleTask:
    """Asks a sampler for a shard of an iteration of a workload of one's own, drawn with the weights of a version.

    number: counts the draws, as `Draw.number` of the contract.
    """

    key: WorkKey
    term: int
    number: int
    version: int


@dataclass(frozen=True, slots=True)
class RowsTask:
    """Asks for an evaluation on the held-out rows, with the weights after an iteration."""

    key: WorkKey
    term: int


@dataclass(frozen=True, slots=True)
class RowsReceipt:
    """The metrics of an evaluation on all held-out rows, by name.

    tables: what a workload of one's own gives beside them, for people, by name: columns and rows as plain values.
    """

    key: WorkKey
    total: int
    metrics: Mapping[str, float]
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrepareReceipt:
    """Where `prepare` wrote its columns.

    files: name within the folder -> sha256.
    reward_moments: the task's moments merged with this iteration's rewards.
    coefficients: the task's, which `learn` uses.
    images: the SHA-256 of the manifest of the samples' images, which are in a folder within; empty without images.
    """

    key: WorkKey
    folder: str
    files: Mapping[str, str]
    metrics: Mapping[str, float]
    timing: Mapping[str, float]
    reward_moments: RewardMoments = field(default_factory=RewardMoments)
    coefficients: Mapping[str, float] = field(default_factory=dict)
    images: str = ""


HIDDEN_SECONDS = "hidden_seconds"
"""Key in the timing of prepared columns: seconds of the trainer's work on the iteration that the driver did not wait for,
because engines still generated."""
READ_BYTES = "read_bytes"
RECEIVED_BYTES = "received_bytes"
"""Keys in an update's timing: bytes of sealed shards and prepared columns that its rank read for `prepare` and `learn`, and
bytes of outlines and rows that ranks sent to it, itself included."""


@dataclass(frozen=True, slots=True)
class UpdateReceipt:
    """An applied update.

    fingerprint: what a replay must reproduce (loss, gradient norm, and the weights' digest if it is cheap).
    timing: seconds, and `READ_BYTES` and `RECEIVED_BYTES` (class timing).
    """

    key: WorkKey
    version: int
    metrics: Mapping[str, float]
    fingerprint: Mapping[str, float | str]
    timing: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointReceipt:
    """A published checkpoint, whose manifest is durable."""

    branch: int
    iteration: int
    term: int
    folder: str
    manifest_sha256: str
    bytes: int
    weights_digest: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SyncReceipt:
    """An engine that now holds the weights of a version.

    seconds: how long the engine had no weights.
    bytes, buckets: how much the engine received; nothing if it is virtual.
    delta: whether only what had changed was sent.
    """

    instance: int
    version: int
    seconds: float
    bytes: int = 0
    buckets: int = 0
    delta: bool = False


@dataclass(frozen=True, slots=True)
class RecoverReceipt:
    """What it took to restore the state of the last commit.

    restored: iteration of the loaded checkpoint; None if the actors still held everything.
    replayed: number of replayed updates.
    warm: whether no trainer rank had to be created.
    start_seconds: seconds until the actors were ready.
    """

    restored: int | None
    replayed: int
    warm: bool
    start_seconds: float
    restore_seconds: float
    replay_seconds: float


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process holds.

    gpus: numbers of the GPUs that Ray assigned to it; empty on CPU cores.
    host_bytes: private memory on the host.
    gpu_bytes: memory on its GPUs.
    """

    gpus: tuple[str, ...] = ()
    host_bytes: int = 0
    gpu_bytes: int = 0


BATCHES_BY_CHANCE = "batches_by_chance"
"""The capability of an actor whose answers may depend on what it happens to batch, so that a repetition may differ."""


@dataclass(frozen=True, slots=True)
class ActorIdentity:
    """Identifies an actor, for logs and for the record of attempts.

    holds: what its process held when it had been loaded.
    """

    name: str
    pid: int
    node: str
    engine: str = ""
    capabilities: Mapping[str, bool] = field(default_factory=dict)
    holds: Holdings = Holdings()


@dataclass(frozen=True, slots=True)
class ActorSeat:
    """Where an actor is.

    actor: its name, such as rollout-0.
    id: Ray's id of this incarnation, which changes when the actor is replaced.
    node: name of its node; empty if unknown.
    device: its device there, such as gpu2 or core0; several are separated by commas. Empty if it has none of its own.
    host_bytes, gpu_bytes: memory that it held when it had been loaded; 0 if it does not report it.
    """

    actor: str
    id: str
    node: str
    device: str
    host_bytes: int
    gpu_bytes: int
