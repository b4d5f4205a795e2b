"""How long a new run takes until its work begins: the parts of a start, and an estimate from the CPU seconds that they need.

Consumes a spec, and the cores of the machine. Produces `StartParts`, by which starts are compared, and a `StartEstimate`. Pure.

A start has five stages, one after the other: the command's checks, the services, the workers, the inputs, which one of them
builds, and engines that are processes or libraries of their own. The processes of a stage start at the same time: it takes
their CPU seconds over the cores, and at least those of its longest process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from yatt_core.spec.rewards.judges import GenerativePart, JudgePart
from yatt_core.spec.roles import device_judges, endpoint_judges
from yatt_core.spec.run import RunSpec

RAY = "ray"
"""A service that a run may have of its own, as the supervisor names it."""
PREFECT = "prefect"
"""The other one."""
WARM_RAY = "warm_ray"
"""Stands for a Ray head of this machine, with its fork server, that was up already: the run has it to itself."""
FEW_PARAMETERS = 5_000_000
"""Models with fewer load in so little time that starts do not differ by them."""
FEW_PROMPTS = 2_000
"""Fewer are written in so little time that starts do not differ by them."""

# The figures are CPU seconds by part of `python -m benchmarks.start` on two cores of an AMD EPYC (docs/benchmarks.md).
CHECKS = 5.9
"""The command before it starts services, with the process in which it tries the reward functions."""
FLOW = 1.6
"""The command beside its services: the libraries of the flow."""
RAY_HEAD = 3.9
"""Ray's servers and the supervisor."""
PREFECT_SERVER = 5.4
PREFECT_MIGRATIONS = 3.9
"""Of a Prefect server whose database is no copy."""
FORK_SERVER = 6.2
"""It imports torch and the engines, and workers are copies of it."""
FORK_SERVER_WITHOUT_TORCH = 2.4
"""With virtual engines, where it imports what makes the inputs (configs/virtual.yaml)."""
WORKER = 0.5
"""A copy of the fork server as an actor, whatever its role, with a small model."""
REWARDS = 1.1
"""The process in which a controller calls reward functions."""
IMPORTS = 5.6
"""What a worker imports that is no copy: the quickstart with its 7 workers takes 32.6 with the fork server, 65.1 without it."""
ENGINES = {"torch": 0.0, "fsdp2": 0.0, "virtual": 0.0, "megatron": 3.8, "vllm": 13.5}
"""What a rank or an instance takes beside its actor, once the inputs are there (configs/vllm-megatron.yaml, on cores)."""


@dataclass(frozen=True, slots=True)
class StartParts:
    """What a session starts.

    services: the names of those that only this run uses; `WARM_RAY` if it took over its Ray head.
    engines: their kinds, by role; of several judges the kinds in one text.
    actors: the number of processes by role.
    parameters: of the policy.
    prompts: all that are written.
    """

    services: tuple[str, ...]
    engines: Mapping[str, str]
    actors: Mapping[str, int]
    parameters: int
    prompts: int

    def is_like(self, other: StartParts) -> bool:
        """Returns True if both have the same processes, and models and inputs of about the same size."""
        same = (self.services, self.engines, self.actors) == (other.services, other.engines, other.actors)
        alike_models = _about_equal(self.parameters, other.parameters, FEW_PARAMETERS)
        return same and alike_models and _about_equal(self.prompts, other.prompts, FEW_PROMPTS)

    @property
    def has_warm_head(self) -> bool:
        """True if the Ray head was up before the start."""
        return WARM_RAY in self.services

    def to_json(self) -> dict[str, Any]:
        """Returns the parts as plain JSON values."""
        return asdict(self) | {"services": list(self.services)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> StartParts:
        """Reads what `to_json` returned; other keys are ignored."""
        return cls(
            services=tuple(tree["services"]),
            engines=tree["engines"],
            actors=tree["actors"],
            parameters=tree["parameters"],
            prompts=tree["prompts"],
        )


def engines_of(spec: RunSpec) -> dict[str, str]:
    """Returns the kinds of a run's engines by role."""
    kinds: dict[str, str] = {"trainer": spec.trainer.engine.kind}
    if spec.samples_responses:
        kinds["rollout"] = spec.rollout.engine.kind
    if judges := device_judges(spec):
        kinds["judges"] = ", ".join(sorted(_kind_of(part) for part in judges))
    return kinds


def _kind_of(judge: JudgePart) -> str:
    return judge.engine.kind if isinstance(judge, GenerativePart) else judge.kind


def actors_of(spec: RunSpec) -> dict[str, int]:
    """Returns the number of a run's actors by role, on one machine."""
    sampling = {"controller": spec.controllers.count, "dispatcher": 1}
    counts = {
        **(sampling if spec.samples_responses else {}),
        "rollout": spec.engine_instances,
        "endpoint": len(endpoint_judges(spec)),
        "trainer": spec.trainer.engine.ranks,
    }
    return {role: count for role, count in counts.items() if count}


def count_actors(names: Iterable[str]) -> dict[str, int]:
    """Returns the number of actors by role, given their names: `ROLE-INDEX`."""
    return dict(Counter(name.partition("-")[0] for name in names))


def _about_equal(one: int, other: int, few: int) -> bool:
    """Returns True if two sizes differ by no more than a factor of two; those below `few` are all equal."""
    least, most = sorted((max(one, few), max(other, few)))
    return most <= 2 * least


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """How long a start takes by what is known of its parts.

    cpu_seconds: by part.
    not_counted: what the start has besides, of which nothing has been measured.
    """

    seconds: float
    cpu_seconds: Mapping[str, float]
    cores: int
    not_counted: tuple[str, ...]


def estimate_start(
    parts: StartParts,
    cores: int,
    *,
    inputs_seconds: float,
    has_gpus: bool,
    has_template: bool,
) -> StartEstimate | None:
    """Returns how long a start takes on this machine's cores; None if the workers' machines are not known.

    inputs_seconds: CPU seconds for building the inputs.
    has_gpus: whether the machine has GPUs: then workers import torch themselves.
    has_template: whether the database of a Prefect server begins as a copy.
    """
    if RAY not in parts.services and not parts.has_warm_head:
        return None
    services = _services(parts, has_gpus=has_gpus, has_template=has_template)
    workers = _workers(parts, has_gpus=has_gpus)
    engines = _engines(parts)
    stages = (CHECKS, *(_together(stage, cores) for stage in (services, workers, engines)), inputs_seconds)
    cpu_seconds = {
        "checks": CHECKS,
        **{name: part.total for name, part in (services | workers | engines).items()},
        "inputs": inputs_seconds,
    }
    return StartEstimate(
        seconds=sum(stages), cpu_seconds=cpu_seconds, cores=cores, not_counted=_not_counted(parts, has_gpus=has_gpus)
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Equal processes that start at the same time. each: CPU seconds of one of them."""

    count: int
    each: float

    @property
    def total(self) -> float:
        return self.count * self.each


def _together(stage: Mapping[str, _Part], cores: int) -> float:
    """Returns the seconds of processes that start at the same time: they share the cores, and none uses more than one."""
    total = sum(part.total for part in stage.values())
    longest = max((part.each for part in stage.values()), default=0.0)
    return max(total / cores, longest)


def _services(parts: StartParts, *, has_gpus: bool, has_template: bool) -> dict[str, _Part]:
    found = {"flow": _Part(1, FLOW)}
    if RAY in parts.services:
        with_torch = not has_gpus and not _is_virtual(parts)
        found[RAY] = _Part(1, RAY_HEAD)
        found["fork_server"] = _Part(1, FORK_SERVER if with_torch else FORK_SERVER_WITHOUT_TORCH)
    if PREFECT in parts.services:
        migrations = 0.0 if has_template else PREFECT_MIGRATIONS
        found[PREFECT] = _Part(1, PREFECT_SERVER + migrations)
    return found


def _workers(parts: StartParts, *, has_gpus: bool) -> dict[str, _Part]:
    imports = IMPORTS if has_gpus and not _is_virtual(parts) else 0.0
    found = {role: _Part(count, WORKER + imports) for role, count in parts.actors.items()}
    if "controller" in found and not _is_virtual(parts):
        found["rewards"] = _Part(parts.actors["controller"], REWARDS)
    return found


def _engines(parts: StartParts) -> dict[str, _Part]:
    """Returns what engines take beside their actors, by kind."""
    return {
        kind: _Part(parts.actors[role], ENGINES[kind])
        for role, kind in parts.engines.items()
        if role in parts.actors and ENGINES.get(kind)
    }


def _is_virtual(parts: StartParts) -> bool:
    return parts.engines["trainer"] == "virtual"


def _not_counted(parts: StartParts, *, has_gpus: bool) -> tuple[str, ...]:
    found = list[str]()
    if has_gpus and not _is_virtual(parts):
        found.append("the start of GPUs")
    if "judges" in parts.engines:
        found.append("the judges' models")
    if parts.parameters > FEW_PARAMETERS:
        found.append("the loading of a large model")
    return tuple(found)
