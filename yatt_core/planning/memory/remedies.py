"""What would make an impossible plan fit: changes to the spec or more nodes, each tried with the plan's memory account.

Consumes the roles, the cluster and the assumptions; produces settings in the form that `--set` takes. Nothing is
guessed: a remedy is named only if the plan fits with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from yatt_core.errors import ConfigurationError
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import CORE, DescribedCluster
from yatt_core.planning.memory.demand import demand_of
from yatt_core.planning.roles import Roles, check_sizes, roles_of
from yatt_core.spec.reading.load import override_spec
from yatt_core.spec.sections.accelerated import Fsdp2Trainer, MegatronTrainer, VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout

MOST_REMEDIES = 6
MOST_DEVICES = 16_384
DOUBLINGS = 5

Settings = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Larger:
    """A number of nodes of the same kind on which the spec fits, possibly with changed settings."""

    nodes: int
    settings: Settings


def remedies(roles: Roles, cluster: DescribedCluster, assumed: Assumptions) -> list[Settings]:
    """Returns the single changes with each of which the plan fits; if there are none, pairs of changes."""
    single = list(changes(roles, cluster))
    for candidates in ([(change,) for change in single], _pairs(single)):
        if found := [settings for settings in candidates if _fits(roles, settings, cluster, assumed)]:
            return _gentlest(found)[:MOST_REMEDIES]
    return []


def larger_that_fits(roles: Roles, cluster: DescribedCluster, assumed: Assumptions) -> Larger | None:
    """Returns the first number of nodes, doubled each time, on which the spec fits with at most two changes.

    For each number of nodes, the unchanged spec is tried first, then single changes, then pairs.
    """
    nodes = cluster.nodes
    while (nodes := nodes * 2) * cluster.devices_per_node <= MOST_DEVICES:
        wider = cluster.model_copy(update={"nodes": nodes})
        single = list(changes(roles, wider))
        candidates: list[Settings] = [(), *((change,) for change in single), *_pairs(single)]
        for settings in candidates:
            if _fits(roles, settings, wider, assumed):
                return Larger(nodes, settings)
    return None


def changes(roles: Roles, cluster: DescribedCluster) -> Iterator[str]:
    """Yields settings that take less memory; for each key, mild changes come first."""
    yield from _changes_of_trainer(roles, cluster)
    if not roles.spec.samples_responses:
        return
    engines = (("rollout.engine", roles.rollout), *((f"{judge.place}.engine", judge.engine) for judge in roles.judges))
    for key, engine in engines:
        if isinstance(engine, VllmRollout):
            yield from _doubled(f"{key}.tensor_parallel_size", engine.tensor_parallel_size, cluster)
    if isinstance(roles.rollout, TorchRollout):
        batch = min(roles.spec.rollout.batch_samples, roles.samples)
        while (batch := batch // 2) >= roles.spec.rollout.samples_per_prompt:
            yield f"rollout.batch_samples={batch}"


def _changes_of_trainer(roles: Roles, cluster: DescribedCluster) -> Iterator[str]:
    trainer = roles.trainer
    longest = roles.lengths.longest_prompt + roles.lengths.longest_response
    budget = getattr(trainer, "micro_batch_tokens", 0)
    while budget > longest:
        budget = max(longest, budget // 2)
        yield f"trainer.engine.micro_batch_tokens={budget}"
    if isinstance(trainer, MegatronTrainer):
        yield from _doubled("trainer.engine.tensor_model_parallel_size", trainer.tensor_model_parallel_size, cluster)
        yield from _doubled(
            "trainer.engine.pipeline_model_parallel_size", trainer.pipeline_model_parallel_size, cluster
        )
        if not trainer.use_distributed_optimizer:
            yield "trainer.engine.use_distributed_optimizer=true"
        if trainer.recompute_granularity == "none":
            yield "trainer.engine.recompute_granularity=full"
        if not trainer.optimizer_cpu_offload:
            yield "trainer.engine.optimizer_cpu_offload=true"
    if isinstance(trainer, Fsdp2Trainer):
        if not trainer.activation_checkpointing:
            yield "trainer.engine.activation_checkpointing=true"
        if not trainer.cpu_offload:
            yield "trainer.engine.cpu_offload=true"


def _doubled(key: str, size: int, cluster: DescribedCluster) -> Iterator[str]:
    for _ in range(DOUBLINGS):
        size *= 2
        if size > cluster.devices:
            return
        yield f"{key}={size}"


def _fits(roles: Roles, settings: Settings, cluster: DescribedCluster, assumed: Assumptions) -> bool:
    try:
        changed = override_spec(roles.spec, settings, "the plan")
        wanted = roles_of(changed, assumed)
        check_sizes(wanted, cluster.card_name == CORE)
        return demand_of(wanted, cluster, assumed).fits
    except ConfigurationError:
        return False


def _pairs(single: Sequence[str]) -> list[Settings]:
    """Returns all pairs of changes to different keys."""
    return [pair for pair in itertools.combinations(single, 2) if _key(pair[0]) != _key(pair[1])]


def _key(setting: str) -> str:
    return setting.partition("=")[0]


def _gentlest(found: Sequence[Settings]) -> list[Settings]:
    """Returns, for each set of changed keys, only the first settings found, which change the values least."""
    kept: dict[Settings, Settings] = {}
    for settings in found:
        kept.setdefault(tuple(_key(setting) for setting in settings), settings)
    return list(kept.values())
