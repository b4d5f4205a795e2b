"""The engines that train and generate in verl's `main_ppo`.

Consumes a draft with verl's keys. Writes into the draft. Raises `ConfigurationError`.
"""

from __future__ import annotations

from typing import Any

from ops.starter.peers import common
from ops.starter.peers.common import SPEED
from ops.starter.peers.draft import Draft
from ops.starter.peers.verl_learning import ACTOR, is_megatron
from yatt_core.counting import many

ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"


def write_engines(draft: Draft) -> None:
    """Writes the sections `trainer.engine` and `rollout.engine`, and low-rank adapters."""
    devices = draft.number("trainer.nnodes", 1) * draft.number("trainer.n_gpus_per_node", 1)
    key = f"{ACTOR}.strategy"
    strategy = draft[key]
    if is_megatron(draft):
        _megatron(draft, devices)
    elif strategy in ("fsdp", "fsdp2"):
        _fsdp(draft, devices)
    else:
        draft.refuse(key, "expected fsdp, fsdp2 or megatron")
    _micro_batches(draft)
    _lora(draft)
    _vllm(draft, devices)
    engine = draft.tree["trainer"]["engine"]
    size = "data_parallel_size" if engine["kind"] == "megatron" else "ranks"
    for key in ("trainer.nnodes", "trainer.n_gpus_per_node"):
        draft.takes(key, {f"trainer.engine.{size}": engine[size]}, many(devices, "device"))


def _fsdp(draft: Draft, devices: int) -> None:
    strategy = draft[f"{ACTOR}.strategy"]
    fsdp = f"{ACTOR}.fsdp_config"
    if draft.given(f"{ACTOR}.strategy"):
        why = "" if strategy == "fsdp2" else "FSDP2 in place of FSDP: the same sums, sharded by parameter"
        draft.takes(f"{ACTOR}.strategy", {"trainer.engine.kind": "fsdp2"}, why)
    draft.write("trainer.engine.kind", "fsdp2")
    draft.write("trainer.engine.ranks", devices)
    draft.takes(f"{fsdp}.dtype", {"trainer.engine.dtype": draft[f"{fsdp}.dtype"]})
    draft.takes(
        f"{fsdp}.reshard_after_forward",
        {"trainer.engine.reshard_after_forward": draft[f"{fsdp}.reshard_after_forward"]},
    )
    keys = [f"{fsdp}.param_offload", f"{fsdp}.optimizer_offload"]
    offloads = any(draft.truth(key) for key in keys)
    for key in keys:
        if draft.given(key):
            draft.takes(key, {"trainer.engine.cpu_offload": offloads})
    checkpointing = f"{MODEL}.enable_gradient_checkpointing"
    draft.takes(checkpointing, {"trainer.engine.activation_checkpointing": draft.truth(checkpointing)})


def _megatron(draft: Draft, devices: int) -> None:
    prefix = f"{ACTOR}.megatron"
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    draft.write("trainer.engine.kind", "megatron")
    if draft.given(f"{ACTOR}.strategy"):
        draft.takes(f"{ACTOR}.strategy", {"trainer.engine.kind": "megatron"})
    for name in sizes:
        sizes[name] = draft.number(f"{prefix}.{name}", 1)
        draft.takes(f"{prefix}.{name}", {f"trainer.engine.{name}": sizes[name]})
    shared = sizes["tensor_model_parallel_size"] * sizes["pipeline_model_parallel_size"]
    key = f"{prefix}.tensor_model_parallel_size"
    draft.write(
        "trainer.engine.data_parallel_size", draft.quotient(devices, shared, "devices by those of a replica", key)
    )


def _micro_batches(draft: Draft) -> None:
    """Writes the size of a micro-batch in tokens; it does not change what is learnt."""
    dynamic = f"{ACTOR}.use_dynamic_bsz"
    tokens = f"{ACTOR}.ppo_max_token_len_per_gpu"
    rows_key = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    longest = draft.number("data.max_prompt_length", 1) + draft.number("data.max_response_length", 1)
    if draft.truth(dynamic):
        draft.takes(dynamic, {}, "micro-batches are of tokens in any case")
        common.micro_batch(draft, tokens, draft.number(tokens, 1))
        draft.lacks(rows_key, "without effect beside use_dynamic_bsz")
        return
    for key in (dynamic, tokens):
        draft.lacks(key, SPEED)
    if draft[rows_key] is not None:
        count = draft.number(rows_key, 1)
        why = f"{many(count, 'response')} of at most {longest} tokens with their prompts"
        common.micro_batch(draft, rows_key, count * longest, why)


def _lora(draft: Draft) -> None:
    keys = (f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha", f"{MODEL}.target_modules")
    if draft.number(keys[0]):
        common.lora(draft, draft.number(keys[0]), draft[keys[2]], keys)
    elif draft.given(keys[0]):
        draft.takes(keys[0], {}, "all weights are trained, as in YATT by default")


def _vllm(draft: Draft, devices: int) -> None:
    """Writes the engine that generates."""
    name = draft[f"{ROLLOUT}.name"]
    key = f"{ROLLOUT}.tensor_model_parallel_size"
    if name == "hf":
        draft.takes(f"{ROLLOUT}.name", {"rollout.engine": {"kind": "torch", "instances": devices, "dtype": "bfloat16"}})
        return
    if name not in (None, "???", "vllm"):
        draft.differs(f"{ROLLOUT}.name", "YATT generates with vLLM or torch", {"rollout.engine.kind": "vllm"})
    else:
        draft.write("rollout.engine.kind", "vllm")
        draft.takes(f"{ROLLOUT}.name", {"rollout.engine.kind": "vllm"}) if draft.given(f"{ROLLOUT}.name") else None
    shared = draft.number(key, 1) * draft.number(f"{ROLLOUT}.pipeline_model_parallel_size", 1)
    instances = draft.quotient(devices, shared, "devices by those of an engine", key)
    draft.write("rollout.engine.instances", instances)
    draft.takes(key, {"rollout.engine.tensor_parallel_size": draft.number(key, 1)})
    pipeline = f"{ROLLOUT}.pipeline_model_parallel_size"
    draft.takes(pipeline, {"rollout.engine.pipeline_parallel_size": draft[pipeline]}) if draft.given(pipeline) else None
    same: tuple[tuple[str, Any], ...] = (
        ("dtype", draft[f"{ROLLOUT}.dtype"]),
        ("gpu_memory_utilization", draft.real(f"{ROLLOUT}.gpu_memory_utilization")),
        ("max_num_seqs", draft.number(f"{ROLLOUT}.max_num_seqs", 1)),
        ("max_num_batched_tokens", draft.number(f"{ROLLOUT}.max_num_batched_tokens", 1)),
        ("enable_prefix_caching", draft.truth(f"{ROLLOUT}.enable_prefix_caching")),
    )
    for part, value in same:
        draft.takes(f"{ROLLOUT}.{part}", {f"rollout.engine.{part}": value})
