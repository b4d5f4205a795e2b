"""What rollout engines and judges are asked to generate in an iteration, and the memory that this takes on a cluster.

Consumes roles and cluster; produces the `EngineMemory` of each role, and the number of engines that fit on the devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from yatt_core.cluster.seating import POLICY, check_seats, engine_layout, most_ranks
from yatt_core.planning.account import NOTHING
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import CORE, DescribedCluster
from yatt_core.planning.judges import GenerationEngine, JudgeRole
from yatt_core.planning.memory.rollout import (
    EngineMemory,
    sampling_copies,
    torch_rollout,
    vllm_on_cores,
    vllm_rollout,
    with_widened_operands,
)
from yatt_core.planning.roles import Roles
from yatt_core.planning.shape import ModelShape
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.rollout import TorchRollout, VirtualRollout


@dataclass(frozen=True, slots=True)
class GenerationLoad:
    """What an engine is asked to generate, in tokens.

    read, written: maximum number of tokens that a sequence reads and writes.
    mean: mean number of tokens of a sequence, read and written together.
    batch: number of sequences in a decode batch.
    group: number of sequences that share a prompt.
    copies: number of float32 distributions that sampling holds in addition to those of plain sampling.
    aligned: whether its log-probabilities are to be the trainer's, to the last bit.
    """

    read: int
    written: int
    mean: float
    batch: int
    group: int
    copies: int = 0
    aligned: bool = False


def engine_memory(
    engine: GenerationEngine,
    shape: ModelShape,
    asked: GenerationLoad,
    cluster: DescribedCluster,
    assumed: Assumptions,
    others: int,
) -> EngineMemory:
    """Returns the memory of an engine.

    others: bytes that the sleeping processes of other roles take on the same device.
    """
    match engine:
        case VllmRollout():
            longest = asked.read + asked.written
            runtime = assumed.engine_runtime
            if cluster.card_name == CORE:
                return vllm_on_cores(engine, shape, longest)
            return vllm_rollout(
                engine=engine,
                shape=shape,
                capacity=cluster.card.memory,
                runtime=runtime,
                others=others,
                longest=longest,
                mean_context=asked.mean,
            )
        case TorchRollout():
            memory = torch_rollout(
                engine=engine,
                shape=shape,
                # A prompt's responses enter together, however many may be in progress.
                batch_samples=max(engine.sequence_limit, asked.group) if engine.sequence_limit else asked.batch,
                samples=asked.group,
                prompt=asked.read,
                response=asked.written,
                copies=asked.copies,
                aligned=asked.aligned,
            )
            narrow = cluster.card_name == CORE and engine.dtype == "bfloat16"
            return with_widened_operands(memory, shape) if narrow else memory
        case VirtualRollout():
            sequences = engine.max_num_seqs or asked.batch
            return EngineMemory(
                devices=1,
                awake=NOTHING,
                asleep=NOTHING,
                resident=NOTHING,
                cached_tokens=0,
                sequences=sequences,
                sleeps=False,
                cache_token_bytes=0.0,
            )


def asked_of_policy(roles: Roles) -> GenerationLoad:
    """Returns what the policy's engines are asked for: several responses to each prompt."""
    lengths = roles.lengths
    rollout = roles.spec.rollout
    batch = _decode_batch(roles.spec)
    group = rollout.samples_per_prompt
    return GenerationLoad(
        read=lengths.longest_prompt,
        written=lengths.longest_response,
        mean=lengths.mean_sample,
        batch=batch,
        group=group,
        copies=sampling_copies(rollout),
        aligned=roles.spec.aligned,
    )


def asked_of_judge(roles: Roles, judge: JudgeRole) -> GenerationLoad:
    """Returns what a judge's engines are asked for: judgements of prompt and response in a template.

    Judgements of the same response share the tokens that they read. The responses of a decode batch are judged
    together, up to the number that the judge can take at once.
    """
    lengths = roles.lengths
    read = lengths.longest_prompt + lengths.longest_response + judge.template_tokens
    mean = lengths.mean_sample + judge.template_tokens + lengths.mean_judgement
    responses = _decode_batch(roles.spec)
    if judge.max_num_seqs is not None:
        responses = min(responses, max(1, judge.max_num_seqs // judge.judgements))
    return GenerationLoad(
        read=read, written=judge.max_new_tokens, mean=mean, batch=responses * judge.judgements, group=judge.judgements
    )


def _decode_batch(spec: RunSpec) -> int:
    """Returns the number of responses in the largest decode batch, of a shard or of an evaluation."""
    shard = -(-spec.data.prompts_per_iteration // spec.shards) * spec.rollout.samples_per_prompt
    return min(spec.rollout.batch_samples, max(shard, spec.data.most_held_out))


def instances_on(by_node: Mapping[str, int], each: int, engine: GenerationEngine, key: str) -> int:
    """Returns the number of engines on the devices; the pipeline stages of the policy's may be on several nodes.

    by_node: number of devices by the node's name.
    each: number of devices of an engine.
    key: spec key with which the message starts.

    Raises `ConfigurationError` if the nodes cannot hold the engines.
    """
    if not isinstance(engine, VllmRollout):
        return engine.instances
    layout = replace(engine_layout(engine, key, engine.instances), shares=False, who="the engines need")
    if key != POLICY:
        layout = replace(layout, parts=1)
    check_seats(by_node, layout)
    return engine.instances or most_ranks(by_node, layout) // each
