"""What do a checkpoint and a restore cost a rank, relative to its share of the state?

Consumes nothing. Two ranks of FSDP2, then two tensor-parallel ranks of Megatron-Core, hold a model of 316 million
float32 parameters with both moments. They take a checkpoint with the product's own writer, and load it again. The
figures are those of the worse rank under the worse engine:

- `checkpoint_peak_over_share`: growth of the rank's private (anonymous) memory, from before the copy until the
  checkpoint is published, divided by the bytes that the rank writes;
- `restore_read_over_share`: bytes that the rank reads (Linux's `rchar`), divided by the bytes of the weights and
  moments that it holds. The files were verified before.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common import progress
from benchmarks.grow.ranks import policy_of, private_growth
from yatt_core.engines.train.base.policy import Policy

PARAMETERS = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
}
ENGINES: Mapping[str, Mapping[str, Any]] = {
    "fsdp2": {"kind": "fsdp2", "ranks": 2, "dtype": "float32"},
    "megatron": {"kind": "megatron", "dtype": "float32", "tensor_model_parallel_size": 2, "data_parallel_size": 1},
}
DEADLINE_SECONDS = 1200.0
RANKS = 2


@dataclass(frozen=True, slots=True)
class Cost:
    """One rank's cost.

    share: bytes that it writes.
    peak: growth of its private memory meanwhile.
    needed: bytes of the weights and moments that it holds.
    read: bytes that it reads to restore them.
    checkpoint_seconds, freeze_seconds, restore_seconds: durations, the first one until the checkpoint is published.
    """

    share: int
    peak: int
    needed: int
    read: int
    freeze_seconds: float
    checkpoint_seconds: float
    restore_seconds: float


def checkpoint_figures(
    folder: Path, sizes: Mapping[str, int] = PARAMETERS
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Measures both engines; returns the figures and, by engine, each rank's cost.

    folder: empty; its files need three times the size of the state.
    sizes: of the model, as its config names them.
    """
    costs: dict[str, list[Cost]] = {}
    model = folder / "model"
    _make_model(model, sizes)
    for name, engine in ENGINES.items():
        progress(f"checkpoint and restore: {name}")
        costs[name] = _on_ranks(folder / name, model, engine)
        shutil.rmtree(folder / name)
    every = [cost for ranks in costs.values() for cost in ranks]
    figures: dict[str, float | None] = {
        "checkpoint_peak_over_share": max(cost.peak / cost.share for cost in every),
        "restore_read_over_share": max(cost.read / cost.needed for cost in every),
    }
    return figures, {name: [asdict(cost) for cost in ranks] for name, ranks in costs.items()}


def _make_model(folder: Path, sizes: Mapping[str, int]) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, **sizes)).save_pretrained(folder)


def _on_ranks(folder: Path, model: Path, engine: Mapping[str, Any]) -> list[Cost]:
    """Runs the ranks, each in a process of its own. Raises `RuntimeError` if one fails."""
    folder.mkdir()
    context = get_context("spawn")
    answers: Any = context.Queue()
    workers = [context.Process(target=_rank, args=(rank, folder, model, engine, answers)) for rank in range(RANKS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE_SECONDS)
        if worker.exitcode != 0:
            for other in workers:
                other.kill()
            raise RuntimeError(f"a rank ended with exit code {worker.exitcode}")
    return [cost for _, cost in sorted(answers.get() for _ in workers)]


def _rank(rank: int, folder: Path, model: Path, engine: Mapping[str, Any], answers: Any) -> None:
    """Builds an engine with moments, takes a checkpoint, and restores it."""
    from yatt_core.checkpoints.writer import CheckpointWriter
    from yatt_core.engines.registry import build_train_engine
    from yatt_core.engines.train.ranks.process_group import close_process_group
    from yatt_core.engines.train.ranks.rendezvous import hold_address
    from yatt_core.protocols.engines import RankContext

    trainer = build_train_engine(_spec(engine), RankContext(folder, folder, str(model), 0))
    trainer.connect(rank, RANKS, _told(folder / "address", hold_address() if rank == 0 else None))
    trainer.initialise()
    _make_moments(policy_of(trainer))
    writer = CheckpointWriter(folder)
    identity = _identity()
    target = "checkpoints/b000-i000001.t0001"
    kept: list[Any] = []

    def freeze() -> Any:
        kept.append(trainer.freeze_state())
        kept.append(time.perf_counter())
        return kept[0]

    def take() -> None:
        writer.begin(target, "first", identity, freeze)
        writer.wait(DEADLINE_SECONDS)

    started = time.perf_counter()
    peak = private_growth(take)
    published = time.perf_counter()
    share = kept[0].nbytes
    needed = _bytes_held(policy_of(trainer))
    _until(lambda: (folder / target).exists())
    read = _bytes_read()
    begun = time.perf_counter()
    trainer.restore(folder / target, trainer.version)
    cost = Cost(
        share=share,
        peak=peak,
        needed=needed,
        read=_bytes_read() - read,
        freeze_seconds=kept[1] - started,
        checkpoint_seconds=published - started,
        restore_seconds=time.perf_counter() - begun,
    )
    answers.put((rank, cost))
    _until(lambda: _met(folder, rank))
    close_process_group()


def _make_moments(policy: Policy) -> None:
    """Takes an optimizer step with made-up gradients, since a pass over the model would add nothing."""
    import torch

    from yatt_core.engines.train.fsdp2.optimizer import ShardedAdamW

    optimizer = policy.optimizer
    if isinstance(optimizer, ShardedAdamW):
        for parameter in optimizer.named.values():
            parameter.grad = torch.full_like(parameter, 1e-3)
    else:
        for gradient in policy.memory().passing:
            gradient.fill_(1e-3)
    optimizer.apply(1e-4, 1.0)
    optimizer.zero()


def _bytes_held(policy: Policy) -> int:
    kinds = ("weights", "exp_avg", "exp_avg_sq")
    return sum(part.values.nbytes for kind in kinds for part in policy.parts(kind))


def _spec(engine: Mapping[str, Any]) -> Any:
    from yatt_core.spec import parse_spec

    tree = {
        "name": "grow",
        "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}]},
        "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
        "trainer": {"engine": dict(engine)},
    }
    return parse_spec(tree, "benchmarks.grow")


def _identity() -> Any:
    from yatt_core.checkpoints.publish import CheckpointIdentity

    return CheckpointIdentity(run="grow-1", branch=0, iteration=1, term=1, spec_digest="", weights_digest="")


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").splitlines()[0].split()[1])


def _met(folder: Path, rank: int) -> bool:
    """Reports that a rank has finished, and returns True if all have."""
    (folder / f"finished-{rank}").touch()
    return all((folder / f"finished-{other}").exists() for other in range(RANKS))


def _told(path: Path, given: str | None) -> str:
    """Passes a text from rank 0 to all ranks."""
    if given is not None:
        path.with_suffix(".writing").write_text(given)
        path.with_suffix(".writing").rename(path)
    _until(path.exists)
    return path.read_text()


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError("the other rank did not follow")
        time.sleep(0.01)
