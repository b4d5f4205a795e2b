"""What a rollout engine holds on a device: while awake in `collect`, and while other roles work.

Consumes the engine's section of the spec and the model's shape; produces `EngineMemory`. The torch engine is
counted as its code allocates: a cache that grows until the engine sleeps. vLLM's cache takes what remains of its
share of the device (arXiv 2309.06180).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from yatt_core.engines.dense.pieces import whole_pieces
from yatt_core.engines.rollout.torch.sizes import PREFILL_TOKENS, padded_length, rounded_slots, rows_for
from yatt_core.planning.account import NOTHING, Bytes
from yatt_core.planning.judges import RewardModelRole
from yatt_core.planning.memory.activations import FLOAT, element_bytes
from yatt_core.planning.memory.aligned_attention import aligned_prefill, aligned_step
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.rollout import RolloutSpec, TorchRollout

NUCLEUS_COPIES = 11
"""Float32 distributions that top-p sampling holds at once: sorted values, their order, masses and sums."""

SHAPING_COPIES = 5
MIN_P_COPIES = 3
TOP_K_COPIES = 2
"""The same for the repetition penalty with its record of tokens, and for what min-p and top-k leave."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory of an engine instance on each of its devices.

    awake: memory while the instance generates.
    asleep: memory while other roles work.
    resident: memory while other roles work, if there is room for all roles at once.
    cached_tokens: number of tokens that an instance's cache holds.
    sequences: number of sequences that it decodes at once.
    sleeps: whether its weights move to the host while others work.
    short: bytes missing in its share of the device to cache one sequence of maximum length; 0 if none are.
    """

    devices: int
    awake: Bytes
    asleep: Bytes
    resident: Bytes
    cached_tokens: int
    sequences: int
    sleeps: bool
    cache_token_bytes: float
    short: int = 0


def sampling_copies(rollout: RolloutSpec) -> int:
    """Returns the number of float32 distributions that sampling holds in addition to those of plain sampling."""
    shaped = rollout.repetition_penalty != 1.0 or rollout.min_new_tokens > 0
    used = (
        (SHAPING_COPIES, shaped),
        (MIN_P_COPIES, rollout.min_p > 0.0),
        (TOP_K_COPIES, rollout.top_k is not None),
        (NUCLEUS_COPIES, rollout.top_p < 1.0),
    )
    return sum(copies for copies, in_use in used if in_use)


def torch_rollout(
    engine: TorchRollout,
    shape: ModelShape,
    batch_samples: int,
    samples: int,
    prompt: int,
    response: int,
    copies: int,
    aligned: bool = False,
) -> EngineMemory:
    """Returns the memory of the torch engine.

    batch_samples: samples of a decode batch.
    samples: samples per prompt.
    prompt, response: maximum lengths in tokens.
    copies: as `sampling_copies` returns them.
    aligned: whether prompts and responses fill whole pieces of slots, as an aligned trainer reads them.
    """
    size = element_bytes(engine.dtype)
    rows = rows_for(batch_samples, aligned or engine.dtype == "float32")
    slots = whole_pieces(prompt) + whole_pieces(response) if aligned else rounded_slots(prompt + response)
    weights = shape.parameters * size
    cache = rows * slots * shape.cached_token_values() * size
    prompts = max(1, batch_samples // samples)
    padded = padded_length(prompt)
    at_once = min(prompts, max(1, PREFILL_TOKENS // padded))
    prefill = at_once * padded * (shape.hidden + 4 * shape.intermediate) * size
    distribution = rows * shape.vocabulary
    # A decode step attends with a mask, which requires copies of shared keys and values for every head, one layer at a time.
    shared = 2 * rows * slots * shape.query_width if shape.heads > shape.key_value_heads else 0
    step = (shared + rows * (3 * shape.hidden + 2 * shape.query_width)) * size
    if aligned:
        prefill += aligned_prefill(shape, at_once, padded)
        step += aligned_step(shape, rows, slots)
    # The logits; then, in float32, the masses and a copy of the values that these are computed from or summed over.
    sampling = distribution * (size + (2 + copies) * FLOAT)
    held = Bytes(weights=weights, kv_cache=cache)
    awake = held + Bytes(activations=max(prefill, step, sampling))
    return EngineMemory(
        devices=1,
        awake=awake,
        asleep=Bytes(weights=weights),
        resident=held,
        cached_tokens=rows * slots,
        sequences=batch_samples,
        sleeps=False,
        cache_token_bytes=shape.cached_token_values() * size,
    )


def with_widened_operands(memory: EngineMemory, shape: ModelShape) -> EngineMemory:
    """Adds what the torch engine on cores in bfloat16 keeps until it sleeps: matrices and cache in float32.

    That is on a processor without instructions for bfloat16. One that has them needs less: its copies of the matrices are
    in its own layout, and the cache is in bfloat16.
    """
    matrices = shape.layers * shape.layer_matrices + shape.embedding_parameters
    times_as_wide = FLOAT // element_bytes("bfloat16")
    more = Bytes(copies=matrices * FLOAT, kv_cache=memory.awake.kv_cache * (times_as_wide - 1))
    return replace(memory, awake=memory.awake + more, resident=memory.resident + more)


def reward_tokens(role: RewardModelRole) -> int:
    """Returns the most tokens of a reward model's pass."""
    return max(role.part.batch_tokens, role.part.max_tokens)


def reward_model(role: RewardModelRole) -> EngineMemory:
    """Returns the memory of a reward model: its weights, which stay loaded, and a pass over the most tokens allowed."""
    size = element_bytes(role.part.dtype)
    tokens = reward_tokens(role)
    held = Bytes(weights=role.shape.parameters * size)
    activations = tokens * (3 * role.shape.hidden + 2 * role.shape.query_width + 2 * role.shape.intermediate) * size
    return EngineMemory(
        devices=1,
        awake=held + Bytes(activations=activations),
        asleep=held,
        resident=held,
        cached_tokens=0,
        sequences=0,
        sleeps=False,
        cache_token_bytes=0.0,
    )


def on_turn(memory: EngineMemory) -> EngineMemory:
    """Returns the memory of a GPU engine that takes turns with others: its weights move to the host while they work."""
    return replace(memory, asleep=NOTHING, sleeps=memory.awake != NOTHING)


def vllm_rollout(
    engine: VllmRollout, shape: ModelShape, capacity: int, runtime: int, others: int, longest: int, mean_context: float
) -> EngineMemory:
    """Returns the memory of vLLM on a GPU.

    capacity: bytes of a device.
    runtime: bytes of the engine's process.
    others: bytes of sleeping processes.
    longest: tokens of the longest sequence.
    mean_context: tokens of an average sequence; the cache limits how many of these run at once.
    """
    size = element_bytes(engine.dtype)
    tensor = engine.tensor_parallel_size
    stages = engine.pipeline_parallel_size
    weights = engine_weights(shape, tensor, stages) * size
    cached = 1 if engine.kv_cache_dtype == "fp8" else size
    activations = engine_activations(engine, shape)
    # If there are fewer key/value heads than devices, several devices keep the same head.
    heads = max(1.0, shape.key_value_heads / tensor)
    token = 2 * shape.layers / stages * heads * shape.head_size * cached
    room = int(capacity * engine.gpu_memory_utilization) - weights - activations - runtime - others
    if engine.kv_cache_memory_bytes is not None:
        room = min(room, engine.kv_cache_memory_bytes)
    tokens = max(0, int(room / token))
    sequences = max(1, min(engine.max_num_seqs, int(tokens / max(1.0, mean_context))))
    # A device that is too small is shown with the smallest cache that vLLM accepts: one sequence of maximum length.
    least = int(longest * token)
    awake = Bytes(weights=weights, kv_cache=max(room, least), activations=activations)
    return EngineMemory(
        devices=tensor * stages,
        awake=awake,
        asleep=Bytes(),
        resident=Bytes(),
        cached_tokens=tokens,
        sequences=sequences,
        sleeps=True,
        cache_token_bytes=token,
        short=max(0, least - room),
    )


def vllm_on_cores(engine: VllmRollout, shape: ModelShape, longest: int) -> EngineMemory:
    """Returns the memory of vLLM on cores: it cannot sleep, and its cache is allocated at the start.

    longest: tokens of the longest sequence.
    """
    size = element_bytes(engine.dtype)
    token = shape.cached_token_values() * (1 if engine.kv_cache_dtype == "fp8" else size)
    cache = engine.kv_cache_memory_bytes or int(engine.max_num_seqs * longest * token)
    held = Bytes(weights=engine_weights(shape, 1, 1) * size, kv_cache=cache)
    tokens = int(cache / token)
    awake = held + Bytes(activations=engine_activations(engine, shape))
    sequences = max(1, min(engine.max_num_seqs, tokens // longest))
    short = max(0, int(longest * token) - cache)
    return EngineMemory(
        devices=1,
        awake=awake,
        asleep=held,
        resident=held,
        cached_tokens=tokens,
        sequences=sequences,
        sleeps=False,
        cache_token_bytes=token,
        short=short,
    )


def engine_weights(shape: ModelShape, tensor: int, stages: int) -> int:
    """Returns the parameters on an engine's fullest device: its share of a stage's layers and of the embeddings."""
    matrices = shape.layers / stages * (shape.layer_matrices / tensor + shape.layer_norms)
    ends = 1 if shape.tied or stages > 1 else 2
    return round(matrices + ends * shape.embedding_parameters / tensor + shape.hidden + shape.tower)


def engine_activations(engine: VllmRollout, shape: ModelShape) -> int:
    """Returns the bytes of a prefill block's widest layer, or of all sequences' logits with their float32 softmax."""
    size = element_bytes(engine.dtype)
    tensor = engine.tensor_parallel_size
    widest = 3 * shape.hidden + (shape.query_width + 2 * shape.key_value_width + 3 * shape.intermediate) / tensor
    logits = engine.max_num_seqs * shape.vocabulary * (size + 2 * FLOAT)
    return round(max(engine.max_num_batched_tokens * widest * size, logits))
