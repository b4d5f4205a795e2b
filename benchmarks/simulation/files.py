"""Writes the files of a simulated cluster: sealed shards and checkpoints in the product's format, of a few bytes each."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

from yatt_core import durable
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.experience.batch import SAMPLES_FILE, SHARD_KIND
from yatt_core.keys import shard_folder
from yatt_core.manifests import entry_of_bytes, publish_manifest
from yatt_core.protocols.receipts import CheckpointReceipt, GroupFacts, ShardReceipt, ShardTask

STATE_FILE = "state"


def seal_shard(run_folder: Path, task: ShardTask) -> ShardReceipt:
    """Publishes one shard of one sample per prompt; its bytes follow from its key alone, whichever term writes it."""
    key = task.key
    prompts = len(task.prompts)
    data = str(key).encode()
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
        group_digests=b"".join(hashlib.sha256(b"%d" % prompt.ordinal).digest() for prompt in task.prompts),
        sums=counts | dict.fromkeys(names, 0.0),
        timing={},
        groups=groups,
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
