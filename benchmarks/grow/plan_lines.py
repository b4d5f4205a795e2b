"""Does each line of `yatt plan` agree with what a rank holds, and what do the examples' lines become at measured ratios?

Two ranks of FSDP2 and of Megatron-Core with tensor parallelism, which stores activations or computes them again, train a
model of 35 million parameters with a KL term. A line is what a rank holds for one purpose, in bytes:

- weights, gradients, optimizer and reference: the storages of the tensors;
- load, prepare, learn, checkpoint: growth of private memory in the call, and in `learn` the gradients with it;
- sync: the same while weights travel to two engines, for the worst rank.

Freed tensors are returned to the system at once. `plan_worst_line` is the largest ratio of plan to measurement, or of
measurement to plan. The plans of the example specs follow line by line, as planned and multiplied by the ratios of the
engine and layout that they use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import progress
from benchmarks.grow.learning import random_experience
from benchmarks.grow.members import BUCKET, RANKS, sent_spec, take_part
from benchmarks.grow.models import FSDP2, MEGATRON, spec_of, write_model
from benchmarks.grow.ranks import Rank, local_part, on_ranks, policy_of, private_growth, return_freed_memory
from benchmarks.grow.receivers import ENGINE_TYPE, KINDS
from benchmarks.grow.transfers import SIZES as SENT_SIZES
from benchmarks.grow.transfers import VOCABULARY as SENT_VOCABULARY
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.fsdp2.optimizer import ShardedAdamW
from yatt_core.installed import MEGATRON as MEGATRON_PACKAGE
from yatt_core.installed import has_distribution
from yatt_core.planning.assumptions import Assumptions, Spread
from yatt_core.planning.cluster import CORE, DescribedCluster, parse_cluster, read_cards
from yatt_core.planning.memory.activations import MicroBatchShape
from yatt_core.planning.memory.demand import demand_of, trainer_of
from yatt_core.planning.memory.training import checkpoint_buffers
from yatt_core.planning.memory.transfers import bytes_sending
from yatt_core.planning.roles import Roles, roles_of
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import BatchTask
from yatt_core.spec import RunSpec, load_spec

SIZES: dict[str, Any] = {
    "hidden_size": 512, "layers": 6, "heads": 8, "key_value_heads": 4, "intermediate_size": 1408, "max_positions": 1024,
    "tie_embeddings": False,
}  # fmt: skip
VOCABULARY = 16_384
PROMPT = 128
RESPONSE = 384
SAMPLES = 4
PROMPTS = 1
HALF = {"dtype": "bfloat16"}
LAYOUTS: Mapping[str, dict[str, Any]] = {
    "fsdp2": FSDP2,
    "megatron": MEGATRON | HALF,
    "megatron_recompute": MEGATRON | HALF | {"recompute_granularity": "full"},
}
CONFIGS = Path(__file__).parents[2] / "configs"
EXAMPLES: Mapping[str, tuple[str, str, str]] = {
    "7b": ("plan-7b-grpo.yaml", "8xH200", "megatron"),
    "72b": ("plan-72b-grpo.yaml", "8xH200,16 nodes", "megatron_recompute"),
}
"""Spec, devices, and the layout whose ratios apply."""
Lines = dict[str, int]
"""What a rank holds for each purpose, in bytes."""


def plan_figures(
    folder: Path, sizes: Mapping[str, Any] = SIZES, sent: Mapping[str, Any] = SENT_SIZES
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns the figures; by layout and line, what was planned and measured; and the examples' lines.

    sizes: of the model that is trained.
    sent: of the model whose weights are sent.
    """
    write_model(folder / "model", VOCABULARY, dict(sizes))
    progress("plan: sync")
    sync = _sync_line(folder, dict(sent))
    details = dict[str, Any]()
    figures = dict[str, float | None]()
    for name, engine in LAYOUTS.items():
        if engine["kind"] == "megatron" and not has_distribution(MEGATRON_PACKAGE):
            continue
        progress(f"plan: {name}")
        spec = measured_spec(engine, dict(sizes))
        planned = planned_lines(*_of_one_rank(spec))
        found = on_ranks(RANKS, hold, spec, folder)
        measured = {line: max(each[line] for each in found) for line in found[0]}
        lines = {line: (planned[line], measured[line]) for line in measured} | {"sync": sync}
        details[name] = {line: _compared(*pair) for line, pair in lines.items()}
        figures[f"plan_learn_over_measured_{name}"] = details[name]["learn"]["ratio"]
    ratios = [row["ratio"] for rows in details.values() for row in rows.values()]
    figures["plan_worst_line"] = max(max(ratio, 1 / ratio) for ratio in ratios)
    examples = {name: _scaled(example_lines(name), details[EXAMPLES[name][2]]) for name in EXAMPLES if len(details) > 1}
    return figures, {"measured": details, "examples": examples}


def measured_spec(engine: dict[str, Any], sizes: dict[str, Any]) -> RunSpec:
    """Returns the spec of the measured run: one micro-batch for each copy of the model."""
    copies = 1 if engine["kind"] == "megatron" else RANKS
    budget = SAMPLES * PROMPTS * (PROMPT + RESPONSE)
    return spec_of(
        engine=engine | {"micro_batch_tokens": budget},
        sizes=sizes,
        prompts=copies * PROMPTS,
        prompt=PROMPT,
        response=RESPONSE,
        kl=0.01,
    )


def hold(rank: Rank, spec: RunSpec, folder: Path) -> Lines:
    """Returns what this rank holds; memory is measured in the second update, when moments exist."""
    return_freed_memory()
    place = folder / f"{spec.trainer.engine.kind}-{getattr(spec.trainer.engine, 'recompute_granularity', '')}"
    engine = rank.engine(spec, RankContext(place, place / "inputs", str(folder / "model"), 0))
    lines = {"load": private_growth(engine.initialise)}
    for iteration in (1, 2):
        prompts = spec.data.prompts_per_iteration
        kept = list[Any]()
        own = (
            random_experience(
                folder=place,
                iteration=iteration,
                prompts=prompts,
                vocabulary=VOCABULARY,
                prompt=PROMPT,
                response=RESPONSE,
            )
            if rank.rank == 0
            else None
        )
        task: BatchTask = rank.shared(own)
        lines["prepare"] = private_growth(partial(_prepare, engine, task, kept))
        lines["learn"] = private_growth(partial(engine.learn, task, rank.shared(kept[0])))
    lines["checkpoint"] = private_growth(engine.freeze_state)
    return lines | _lasting(policy_of(engine))


def _prepare(engine: TrainEngine, task: BatchTask, kept: list[Any]) -> None:
    kept.append(engine.prepare(task))


def _lasting(policy: Policy) -> Lines:
    """Returns the bytes of the tensors that a rank holds from one update to the next."""
    state = policy.optimizer
    reference = policy.reference
    weights = [local_part(each) for each in policy.loaded().parameters()]
    if isinstance(state, ShardedAdamW):
        # Gradients exist only within an update: `learn` includes them.
        optimizer = tuple(shard for kind in state.moments.values() for shard in kind.values())
        lines = Lines()
        reference = reference.values()
    else:
        from yatt_core.engines.train.megatron.optimizer import MegatronAdamW

        assert isinstance(state, MegatronAdamW)
        optimizer = tuple(state.lasting())
        lines = {"gradients": _storages(policy.memory().passing)}
    held = _storages([*weights, *optimizer]) - _storages(weights)
    return lines | {"weights": _storages(weights), "optimizer": held, "reference": _storages(reference)}


def _storages(tensors: Iterable[Any]) -> int:
    found = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(found.values())


def planned_lines(roles: Roles, batch: MicroBatchShape, ranks: int, copies: int) -> Lines:
    """Returns the plan's lines for one rank, which together name everything that it holds.

    batch: its largest micro-batch.
    copies: number of data-parallel copies.
    """
    memory = trainer_of(roles, batch, ranks, copies)
    lasting = memory.lasting + memory.host
    reference = memory.reference.weights
    fsdp2 = roles.trainer.kind == "fsdp2"
    half = getattr(roles.trainer, "dtype", "float32") == "bfloat16"
    # Megatron-Core makes its float32 copy of the weights when it loads them.
    masters = 0 if fsdp2 or not half else lasting.optimizer // 3
    lines = {
        "weights": lasting.weights,
        "optimizer": lasting.optimizer,
        "reference": reference,
        "load": lasting.weights + masters + reference,
        "prepare": memory.prepare.total,
        "learn": memory.learn.total + (lasting.gradients if fsdp2 else 0),
        "checkpoint": checkpoint_buffers(memory, roles.policy, ranks, on_cores=batch.on_cores).copies,
        "sync": memory.sync.total,
    }
    return lines if fsdp2 else lines | {"gradients": lasting.gradients}


def example_lines(name: str) -> Lines:
    """Returns the lines of an example's plan, for one rank."""
    config, devices, _ = EXAMPLES[name]
    spec = load_spec(CONFIGS / config)
    assumed = Assumptions()
    roles = roles_of(spec, assumed)
    found = demand_of(roles, parse_cluster(devices, read_cards()), assumed)
    return planned_lines(roles, found.micro_batch, found.ranks, found.copies)


def _of_one_rank(spec: RunSpec) -> tuple[Roles, MicroBatchShape, int, int]:
    assumed = Assumptions(prompt=Spread(PROMPT, 0.0), own_vocabulary=VOCABULARY)
    roles = roles_of(spec, assumed)
    cluster = DescribedCluster(card_name=CORE, card=read_cards()[CORE], devices_per_node=RANKS)
    found = demand_of(roles, cluster, assumed)
    return roles, found.micro_batch, found.ranks, found.copies


def _sync_line(folder: Path, sizes: dict[str, Any]) -> tuple[int, int]:
    """Returns what a plan says, and what the worst rank of the measure of transfers took."""
    place = folder / "sent"
    place.mkdir()
    write_model(place / "model", SENT_VOCABULARY, sizes)
    found = on_ranks(RANKS + KINDS["torch"].count, take_part, place, sizes)
    spec = sent_spec(sizes)
    trainer = spec.trainer.model_copy(update={"sync_bucket_bytes": BUCKET})
    engine = spec.rollout.engine.model_copy(update={"dtype": ENGINE_TYPE})
    spec = spec.model_copy(update={"trainer": trainer, "rollout": spec.rollout.model_copy(update={"engine": engine})})
    roles = roles_of(spec, Assumptions(own_vocabulary=SENT_VOCABULARY))
    return bytes_sending(roles, RANKS), max(each["peak"] for each in found[:RANKS])


def _compared(planned: int, measured: int) -> dict[str, float]:
    return {"plan": planned, "measured": measured, "ratio": planned / max(measured, 1)}


def _scaled(lines: Lines, measured: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Returns an example's lines as planned, and as the measured shares scale up to its size."""
    return {line: {"plan": value, "scaled": value / measured[line]["ratio"]} for line, value in lines.items()}
