"""What travels between the driver and the actors: tasks out, receipts back. Never tensors, texts or tokens.

Everything here is small, immutable and picklable. Paths are relative to the run folder. Receipts carry counts, sums and
digests, so that the driver's traffic stays below 1 KB a sample whatever the sample weighs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from yatt_core.algorithms.moments import RewardMoments
from yatt_core.keys import WorkKey


@dataclass(frozen=True, slots=True)
class PromptRef:
    """A drawn prompt: its ordinal in the run's stream, and where it stands in its source's endless seeded order."""

    ordinal: int
    source: int
    position: int


@dataclass(frozen=True, slots=True)
class InputsReceipt:
    """What the run starts from, materialised once: prompts, tokenizer, initial model.

    folder: relative to the run folder. model_path: absolute. A virtual run has no model (empty path).
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


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Make the experience of one logical shard with the weights of a version."""

    key: WorkKey
    term: int
    prompts: tuple[PromptRef, ...]
    weight_version: int


JUDGE_TOKENS, JUDGE_PROMPT_TOKENS = "judge_tokens", "judge_prompt_tokens"
"""In a shard's timing: tokens that judges wrote, and read, for it."""
PEAK_BYTES = "peak_bytes_in_flight"
"""In a shard's timing: most bytes that its controller had under way at once, since it was asked for its shards."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What dynamic sampling decides by: one entry per prompt, in order of ordinal. tokens: of all of its responses."""

    reward_min: tuple[float, ...] = ()
    reward_max: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardWork:
    """What it took to make some samples and judge them, in tokens; an entry a sample, by prompt ordinal and sample.

    ordinals: of their prompts. judged: by judgement, those of all judges behind one another, of each sample. read: tokens that
    judges read of it, once each.
    """

    ordinals: tuple[int, ...] = ()
    prompt_tokens: tuple[int, ...] = ()
    response_tokens: tuple[int, ...] = ()
    judged: tuple[tuple[int, ...], ...] = ()
    read: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardReceipt:
    """A finished shard: its manifest is durable.

    group_digests: 32 bytes per prompt in order of ordinal. sums: additive statistics of the samples (class result).
    lengths are response tokens. timing: seconds by stage, and
    `PEAK_BYTES` (class timing). adopted: found sealed, not made now.
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


@dataclass(frozen=True, slots=True)
class EvaluateTask:
    """Answer a slice of the held-out tasks greedily."""

    key: WorkKey
    term: int
    start: int
    stop: int
    weight_version: int


@dataclass(frozen=True, slots=True)
class EvaluateReceipt:
    """How many of a slice's tasks were answered, how many rightly, and the reward of each.

    Not their sum: sums of slices would show, in the last bit, how many controllers there are.
    """

    key: WorkKey
    total: int
    correct: int
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SftReceipt:
    """What supervised fine-tuning came to."""

    steps: int
    loss: float
    probe_accuracy: float
    seconds: float
    weights_digest: str


@dataclass(frozen=True, slots=True)
class ShardRef:
    """A sealed shard as the ledger names it."""

    folder: str
    manifest_sha256: str


@dataclass(frozen=True, slots=True)
class Admission:
    """Which of an iteration's groups an update learns from, by prompt ordinal, ascending.

    padding: groups that fill the batch up and are masked. keep: samples at either end of a group's rewards; none for all.
    """

    groups: tuple[int, ...]
    padding: tuple[int, ...] = ()
    keep: int | None = None


@dataclass(frozen=True, slots=True)
class BatchTask:
    """An iteration's sealed experience, to be prepared or learnt from; shards in canonical order.

    admission: what of it; none for all. reward_moments: of all iterations before, which `prepare` may scale rewards by.
    """

    key: WorkKey
    term: int
    shards: tuple[ShardRef, ...]
    admission: Admission | None = None
    reward_moments: RewardMoments = field(default_factory=RewardMoments)


@dataclass(frozen=True, slots=True)
class PrepareReceipt:
    """Where `prepare` put its columns. files: name within the folder -> sha256.

    reward_moments: the task's, with the rewards of this iteration taken in.
    """

    key: WorkKey
    folder: str
    files: Mapping[str, str]
    metrics: Mapping[str, float]
    timing: Mapping[str, float]
    reward_moments: RewardMoments = field(default_factory=RewardMoments)


@dataclass(frozen=True, slots=True)
class UpdateReceipt:
    """An applied update. fingerprint: what a replay has to reproduce (loss, gradient norm, weights digest where cheap)."""

    key: WorkKey
    version: int
    metrics: Mapping[str, float]
    fingerprint: Mapping[str, float | str]
    timing: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointReceipt:
    """A published checkpoint: its manifest is durable."""

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
    """An engine that now holds the weights of a version. seconds: for which it had none. bytes, buckets: that came to it."""

    instance: int
    version: int
    seconds: float
    bytes: int = 0
    buckets: int = 0


@dataclass(frozen=True, slots=True)
class RecoverReceipt:
    """What it took to get to the last commit's state. restored: iteration of the loaded checkpoint; none where the actors still
    held what was needed. warm: no trainer rank had to be made. Seconds: until the actors were ready, of loading, of replay.
    """

    restored: int | None
    replayed: int
    warm: bool
    start_seconds: float
    restore_seconds: float
    replay_seconds: float


@dataclass(frozen=True, slots=True)
class ActorIdentity:
    """Who an actor is, for logs and for the record of attempts."""

    name: str
    pid: int
    node: str
    engine: str = ""
    capabilities: Mapping[str, bool] = field(default_factory=dict)
