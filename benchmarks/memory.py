"""Do the torch engines hold the tensor bytes that `yatt plan` predicts? Measured with over 50 million parameters.

Consumes nothing. Generates with the real rollout engine, seals the responses as experience, and learns from them with
the real trainer of one rank, including a KL term. Persistent tensors are counted by storage; temporary memory of a
call is the peak of the allocations that torch's profiler reports. Both engines run the transformers module, as the
plan assumes, since the custom kernels hold less. The runtime's memory (interpreter and libraries) is measured
separately, before any tensor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.experience import seal_responses
from benchmarks.held_bytes import held_bytes
from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.models.model_folder import make_model
from yatt_core.planning.account import COLLECT, LEARN, PREPARE, SYNC, Bytes, RoleMemory
from yatt_core.planning.assumptions import Assumptions, Spread
from yatt_core.planning.cluster import CORE, DescribedCluster, read_cards
from yatt_core.planning.memory.demand import demand_of
from yatt_core.planning.roles import Roles, roles_of
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.sections.model import ModelFromConfig
from yatt_core.wire.buckets import buckets_of

VOCABULARY = 16_384
PROMPT = 48
RESPONSE = 16
SAMPLES = 8
SPEC: dict[str, Any] = {
    "name": "memory",
    "iterations": 4,
    "model": {
        "kind": "from_config", "hidden_size": 640, "layers": 9, "heads": 10, "key_value_heads": 5,
        "intermediate_size": 1920, "max_positions": 256,
    },
    "data": {
        "sources": [{"kind": "reasoning_gym", "task": "spell_backward"}],
        "prompts_per_iteration": 8, "logical_shards": 1, "held_out": 8, "max_prompt_tokens": PROMPT,
    },
    "rollout": {
        "engine": {"kind": "torch", "instances": 1, "kernels": "general"},
        "samples_per_prompt": SAMPLES, "max_new_tokens": RESPONSE,
        "temperature": 0.8,
    },
    "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
    "algorithm": {"kl": {"coefficient": 0.01}},
    "trainer": {"engine": {"kind": "torch", "ranks": 1, "micro_batch_tokens": 1024, "kernels": "general"}},
}  # fmt: skip


def storages(tensors: Iterable[torch.Tensor]) -> int:
    """Sums the bytes of the tensors' storages, counting shared ones once."""
    found = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(found.values())


def peak_of(call: Callable[[], Any]) -> int:
    """Returns the peak of bytes that torch allocated within the call, not counting those held before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = recorded.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([change for _, change in changes]), default=0))


def predicted(roles: Roles) -> dict[str, RoleMemory]:
    """Returns the plan's prediction for a core, by role."""
    cluster = DescribedCluster(card_name=CORE, card=read_cards()[CORE], devices_per_node=1)
    return {role.role: role for role in demand_of(roles, cluster, Assumptions()).roles}


def memory_spec() -> RunSpec:
    """Returns the spec of the measured run."""
    return parse_spec(SPEC, "benchmarks.memory")


def memory_roles(spec: RunSpec) -> Roles:
    """Returns the spec's roles, with prompts of the maximum length and responses that never end early."""
    return roles_of(spec, Assumptions(prompt=Spread(PROMPT, 0.0), own_vocabulary=VOCABULARY))


def measure() -> Report:
    """Measures both engines and compares them with the plan."""
    load = [load_average()]
    process = psutil.Process()
    runtime = process.memory_info().rss
    spec = memory_spec()
    roles = memory_roles(spec)
    plan = predicted(roles)
    with tempfile.TemporaryDirectory(prefix="yatt") as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        assert isinstance(spec.model, ModelFromConfig)
        make_model(spec.model, VOCABULARY, spec.seed, model)
        progress(f"{roles.policy.parameters / 1e6:.1f} million parameters; generating")
        request = decode_batch(spec)
        collected, result = _rollout(model, request)
        progress("learning")
        measured = {
            COLLECT: collected,
            **_training(spec=spec, folder=folder, model=model, request=request, result=result),
        }
    rows = dict(_compared(plan, measured))
    figures: dict[str, float | None] = {f"{key}_ratio": row["predicted"] / row["measured"] for key, row in rows.items()}
    figures["worst_error"] = max(abs(ratio - 1.0) for ratio in figures.values() if ratio is not None)
    figures |= {"parameters": float(roles.policy.parameters), "runtime_bytes": float(runtime)}
    return Report("memory", figures, [spec.seed], [*load, load_average()], details={"bytes": rows})


def _compared(plan: dict[str, RoleMemory], measured: dict[str, Bytes]) -> Iterable[tuple[str, dict[str, int]]]:
    """Yields predicted and measured bytes under keys such as `learn_activations`, by stage and kind of memory.

    Only the roles that work in a stage count. Kinds that measured nothing are omitted.
    """
    own = {COLLECT: ("rollout",), PREPARE: ("trainer", "reference"), LEARN: ("trainer",), SYNC: ("trainer",)}
    for stage, found in measured.items():
        told = sum((plan[role].at(stage) for role in own[stage]), Bytes())
        for kind in Bytes.__slots__:
            if getattr(found, kind):
                yield f"{stage}_{kind}", {"predicted": getattr(told, kind), "measured": getattr(found, kind)}


def decode_batch(spec: RunSpec) -> GenerateRequest:
    """Returns random prompts of the maximum length."""
    noise = np.random.default_rng(spec.seed)
    prompts = spec.data.prompts_per_iteration
    return GenerateRequest(
        prompts=[noise.integers(0, VOCABULARY, PROMPT).astype(np.int32) for _ in range(prompts)],
        seeds=noise.integers(0, 2**63, (prompts, SAMPLES)).astype(np.uint64),
        max_new_tokens=RESPONSE,
        stop_tokens=(),
        weight_version=0,
        temperature=spec.rollout.temperature,
    )


def _rollout(model: Path, request: GenerateRequest) -> tuple[Bytes, GenerateResult]:
    engine = TorchRolloutEngine(
        model_path=str(model),
        dtype="float32",
        max_prompt_tokens=PROMPT,
        max_new_tokens=RESPONSE,
        inputs_folder=model,
        kernels="general",
    )
    engine.update_weights({name: tensor.numpy().copy() for name, tensor in engine._tensors.items()}, 0)
    result = engine.generate(request)
    activations = peak_of(lambda: engine.generate(request))
    cache = held_bytes(engine._runner)
    return Bytes(weights=storages(engine._tensors.values()), kv_cache=cache, activations=activations), result


def _training(
    spec: RunSpec, folder: Path, model: Path, request: GenerateRequest, result: GenerateResult
) -> dict[str, Bytes]:
    """Measures the second iteration, since the moments exist then. `prepare` exchanges the weights for the reference."""
    engine = TorchTrainEngine(spec, RankContext(folder, folder / "inputs", str(model), 0))
    engine.connect(0, 1, "")
    engine.initialise()
    prepared = engine.prepare(first := seal_responses(folder, 1, request, result))
    assert prepared is not None
    engine.learn(first, prepared)
    second = seal_responses(folder, 2, request, result)
    kept: list[Any] = []
    besides = peak_of(lambda: kept.append(engine.prepare(second)))
    activations = peak_of(lambda: engine.learn(second, kept[0]))
    engine.freeze_state()
    copies = engine.workload.buffers.nbytes
    optimizer = engine.policy.optimizer
    reference = engine.policy.reference
    assert reference is not None
    state = optimizer._adamw.state[optimizer.values]
    flat = storages([optimizer.values])
    lasting = Bytes(flat, storages([optimizer.gradients]), storages([state["exp_avg"], state["exp_avg_sq"]]))
    own = lasting + Bytes(copies=copies)
    # The memory that `prepare` needs in addition: the weights put aside, and activations.
    exchanged = Bytes(activations=besides - flat, copies=flat, weights=storages([reference]))
    buckets = buckets_of(engine.stream_weights(), spec.trainer.sync_bucket_bytes)
    sent = Bytes(copies=max(bucket.nbytes for bucket in buckets))
    return {PREPARE: own + exchanged, LEARN: own + Bytes(activations=activations), SYNC: own + sent}


def main() -> None:
    """Runs the benchmark."""
    arguments = argument_parser(__doc__).parse_args()
    print_report(measure(), arguments.json)


if __name__ == "__main__":
    main()
