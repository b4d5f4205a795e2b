"""The JSON document of `yatt plan -o json`, with a stable set of keys; bytes, seconds and tokens are plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from yatt_core.planning.account import RoleMemory, StageTotal
from yatt_core.planning.cluster import DescribedCluster
from yatt_core.planning.files import FilesOnNodes
from yatt_core.planning.memory.rollout import EngineMemory
from yatt_core.planning.plan import RunPlan, Times


def plan_document(made: RunPlan) -> dict[str, Any]:
    """Returns the plan as a JSON object."""
    roles = made.roles
    demand = made.demand
    return {
        "name": roles.spec.name,
        "spec_digest": roles.spec.digest,
        "fits": made.fits,
        "resident": demand.resident,
        "parameters": roles.policy.parameters,
        "cluster": cluster_document(made.cluster),
        "files": files_document(made.files),
        "placement": {
            "rollout": _engine(roles.rollout.kind, demand.instances, demand.rollout) if demand.engines else None,
            "judge": None
            if roles.judge is None or demand.judge is None
            else _engine(roles.judge.engine.kind, demand.judge_instances, demand.judge),
            "trainer": {
                "engine": roles.trainer.kind,
                "ranks": demand.ranks,
                "copies": demand.copies,
                "devices": roles.spec.placement.trainer,
            },
            "reference": roles.reference,
            "critic": None if roles.critic is None else roles.critic.parameters,
            "teachers": [teacher.parameters for teacher in roles.teachers],
        },
        "memory": memory_document(demand.roles, demand.totals),
        "shortages": [asdict(shortage) for shortage in demand.shortages],
        "remedies": [list(settings) for settings in made.remedies],
        "larger": None if made.larger is None else {"nodes": made.larger.nodes, "settings": list(made.larger.settings)},
        "in_flight": made.in_flight,
        "times": None if made.times is None else _times(made.times),
        "warnings": made.warnings,
        "assumed": made.assumed,
    }


def cluster_document(cluster: DescribedCluster) -> dict[str, Any]:
    """Returns the devices of a plan."""
    return {
        "card": cluster.card_name,
        "devices_per_node": cluster.devices_per_node,
        "nodes": cluster.nodes,
        "devices": cluster.devices,
        "device_bytes": cluster.card.memory,
    }


def files_document(files: FilesOnNodes) -> dict[str, Any]:
    """Returns what the nodes of a plan must share."""
    return {
        "storage_url": files.storage_url,
        "shared_home_required": files.shared_home_required,
        "lost_with_a_node": list(files.lost_with_a_node),
    }


def memory_document(roles: Sequence[RoleMemory], totals: Sequence[StageTotal]) -> list[dict[str, Any]]:
    """Returns the memory of a plan by stage and role."""
    return [
        {
            "stage": total.stage,
            "tensors": total.tensors,
            "runtime": total.runtime,
            "capacity": total.capacity,
            "short": total.short,
            "host": total.host,
            "host_capacity": total.host_capacity,
            "roles": {
                role.role: {**asdict(role.at(total.stage)), "runtime": role.runtime.get(total.stage, 0)}
                for role in roles
            },
        }
        for total in totals
    ]


def _engine(kind: str, instances: int, memory: EngineMemory) -> dict[str, Any]:
    return {
        "engine": kind,
        "instances": instances,
        "devices_per_instance": memory.devices,
        "sequences_at_once": memory.sequences,
    }


def _times(times: Times) -> dict[str, Any]:
    chosen = times.recommended
    workload = times.load.workload
    return {
        "mode": chosen.mode,
        "partition": chosen.partition,
        "step_s": chosen.step_s,
        "collect_s": chosen.collect_s,
        "train_s": chosen.train_s,
        "tokens_per_second": chosen.tokens_per_second,
        "idle_fraction": chosen.idle,
        "modes": [asdict(outcome) for outcome in times.tried],
        "training": asdict(times.training),
        "engines": workload.engines.model_dump(mode="json"),
        "switch": workload.switch.model_dump(mode="json"),
        "simulated_scale": times.load.scale,
        "checkpoint_every": times.checkpoint_every,
        "checkpoint_overhead": times.checkpoint_overhead,
    }
