"""Writes the files of a simulated cluster: sealed shards and checkpoints in the product's format, of a few bytes each."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from yatt_core import durable
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.collection.slices import stretches_until
from yatt_core.experience.batch import SAMPLES_FILE, SHARD_KIND
from yatt_core.experience.carried import CARRIED_FILE
from yatt_core.keys import shard_folder
from yatt_core.manifests import entry_of_bytes, load_manifest, publish_manifest, read_file
from yatt_core.protocols.receipts import CheckpointReceipt, GroupFacts, ShardReceipt, ShardTask, SliceFacts

STATE_FILE = "state"
SCORED = 100
"""Responses with a score that a simulated group is said to have: more than any rule needs."""


def seal_shard(run_folder: Path, task: ShardTask) -> ShardReceipt:
    """Publishes one shard of one sample per prompt; its bytes follow from key and weights, whichever term writes it."""
    if task.slices:
        return seal_slices(run_folder, task)
    key = task.key
    prompts = len(task.prompts)
    version = task.weight_version
    data = f"{key}, version {version}".encode()
    folder = shard_folder(key, task.term)
    durable.make_folder(run_folder / folder)
    durable.write_file(run_folder / folder / SAMPLES_FILE, data)
    correct = tuple((prompt.ordinal * prompt.ordinal + prompt.position) % 3 for prompt in task.prompts)
    groups = GroupFacts((0.0,) * prompts, (1.0,) * prompts, (1,) * prompts, correct)
    files = {SAMPLES_FILE: entry_of_bytes(data)}
    manifest_sha256 = publish_manifest(run_folder / folder, SHARD_KIND, {"groups": asdict(groups)}, files)
    names = ("correct", "truncated", "reward_errors", "zero_spread_groups", "reward", "reward_squared")
    counts = dict.fromkeys(("prompts", "samples", "prompt_tokens", "response_tokens", "loss_tokens"), float(prompts))
    return ShardReceipt(
        key=key,
        term=task.term,
        folder=str(folder),
        manifest_sha256=manifest_sha256,
        prompts=prompts,
        samples=prompts,
        tokens=prompts,
        group_digests=b"".join(
            hashlib.sha256(b"%d %d" % (prompt.ordinal, version)).digest() for prompt in task.prompts
        ),
        sums=counts | dict.fromkeys(names, 0.0),
        timing={},
        groups=groups,
    )


def length_of(ordinal: int) -> int:
    """Returns the tokens of the simulated response to a prompt: most are short, some are long."""
    return 1 + ordinal * 7 % 5 + (14 if ordinal % 6 == 1 else 0)


def tokens_by_version(stretches: list[list[int]]) -> Counter[int]:
    """Returns the tokens of a response by the version that they were drawn under."""
    found: Counter[int] = Counter()
    for version, tokens in stretches:
        found[version] += tokens
    return found


def seal_slices(run_folder: Path, task: ShardTask) -> ShardReceipt:
    """Publishes a shard whose responses draw a slice; goes on from what is sealed of them, which must be intact.

    The file of those that go on has the stretches of all as JSON.
    """
    key = task.key
    going: dict[int, list[list[int]]] = {}
    ended: dict[int, list[list[int]]] = {}
    completed: dict[int, int] = {}
    for prompt, one in zip(task.prompts, task.slices, strict=True):
        stretches: list[list[int]] = []
        if one.sealed is not None:
            manifest = load_manifest(run_folder / one.sealed.folder, SHARD_KIND, one.sealed.manifest_sha256)
            data = read_file(run_folder / one.sealed.folder, CARRIED_FILE, manifest.files[CARRIED_FILE])
            stretches = [list(each) for each in stretches_until(json.loads(data)[str(prompt.ordinal)], one.kept or 999)]
        left = length_of(prompt.ordinal) - sum(tokens for _, tokens in stretches)
        new = left if one.tokens is None else min(left, one.tokens)
        stretches.append([task.weight_version, new])
        completed[prompt.ordinal] = new if new == left else 0
        (ended if new == left else going)[prompt.ordinal] = stretches
    contents = {
        SAMPLES_FILE: f"{key}, {json.dumps(ended)}, version {task.weight_version}".encode(),
        CARRIED_FILE: json.dumps(going | ended).encode(),
    }
    folder = shard_folder(key, task.term)
    durable.make_folder(run_folder / folder)
    for name, data in contents.items():
        durable.write_file(run_folder / folder / name, data)
    names = ("correct", "truncated", "reward_errors", "zero_spread_groups", "reward", "reward_squared")
    counts = ("prompts", "samples", "prompt_tokens", "response_tokens", "loss_tokens")
    lengths = {ordinal: length_of(ordinal) for ordinal in ended}
    many = len(ended)
    groups = GroupFacts((0.0,) * many, (1.0,) * many, tuple(lengths.values()), (0,) * many)
    slices = SliceFacts(
        completed=tuple(completed.values()),
        scored=tuple(SCORED if ordinal in ended else 0 for ordinal in completed),
        lengths=tuple((sum(tokens for _, tokens in stretches),) for _, stretches in sorted((going | ended).items())),
    )
    fields = {
        "groups": asdict(groups),
        "slices": asdict(slices),
        "prompt_ordinals": list(ended),
        "sums_by_group": [
            dict.fromkeys(counts, 1.0) | dict.fromkeys(names, 0.0) | {"response_tokens": float(length)}
            for length in lengths.values()
        ],
        "tokens_by_version": [sorted(tokens_by_version(stretches).items()) for stretches in ended.values()],
    }
    files = {name: entry_of_bytes(data) for name, data in contents.items()}
    return ShardReceipt(
        key=key,
        term=task.term,
        folder=str(folder),
        manifest_sha256=publish_manifest(run_folder / folder, SHARD_KIND, fields, files),
        prompts=len(task.prompts),
        samples=many,
        tokens=sum(lengths.values()),
        group_digests=b"".join(
            hashlib.sha256(repr((ordinal, stretches)).encode()).digest()
            for ordinal, stretches in [*ended.items(), *going.items()]
        ),
        sums=dict.fromkeys(counts, float(many)) | dict.fromkeys(names, 0.0),
        timing={},
        groups=groups,
        slices=slices,
    )


def write_checkpoint(run_folder: Path, folder: str, identity: CheckpointIdentity, state: bytes) -> CheckpointReceipt:
    """Publishes the trainer's state."""

    def write(target: Path) -> None:
        (target / STATE_FILE).write_bytes(state)

    return publish_checkpoint(
        run_folder=run_folder, folder=folder, identity=identity, write=write, needed_bytes=len(state)
    )


def read_checkpoint(run_folder: Path, folder: str, manifest_sha256: str) -> bytes:
    """Reads a published state. Raises `DataError` if it does not match the digest."""
    verify_checkpoint(run_folder, folder, manifest_sha256)
    return (run_folder / folder / STATE_FILE).read_bytes()
