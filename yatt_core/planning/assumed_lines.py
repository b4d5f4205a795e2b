"""Describes what a plan assumed, because neither the spec nor a run's records contain it.

Consumes roles, cluster, assumptions and fitted constants; produces one line for each assumption that the plan used.
"""

from __future__ import annotations

from collections.abc import Iterator

from yatt_core.planning.account import GIB
from yatt_core.planning.assumptions import Assumptions
from yatt_core.planning.cluster import DescribedCluster
from yatt_core.planning.exact_prices import price_line, read_prices
from yatt_core.planning.memory.transfers import weights_sent
from yatt_core.planning.roles import Roles
from yatt_core.planning.time.fitted import FittedConstants
from yatt_core.planning.time.times import sync_gb_s
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.spec.sections.placement import LENT, SHARED
from yatt_core.spec.sections.rollout import TorchRollout

HOUR = 3600.0


def assumed_lines(
    roles: Roles, cluster: DescribedCluster, assumed: Assumptions, fitted: FittedConstants | None
) -> Iterator[str]:
    """Yields all assumptions that the plan used."""
    card = cluster.card
    yield (
        f"{cluster}: {card.memory_gb:.4g} GB, {card.flops / 1e12:g} TFLOP/s, {card.bandwidth_gb_s:g} GB/s per device "
        f"({card.source})"
    )
    yield from _lengths(roles, assumed)
    if roles.policy.vocabulary_assumed and not roles.spec.virtual:
        yield f"a vocabulary of {roles.policy.vocabulary} tokens: the run trains its own tokenizer on its prompts"
    if not roles.spec.virtual:
        yield from _times(roles, cluster, assumed, fitted)
        yield from _processes(roles, cluster, assumed)
        yield price_line(roles.spec, cluster, read_prices())
    yield from _asynchrony(roles)
    if roles.spec.samples_dynamically:
        yield "dynamic_sampling: every group counts, so no further waves are sampled"
    yield f"{assumed.between_failures_s / HOUR:g} hours between failures that lose the trainer's tensors"


def _asynchrony(roles: Roles) -> Iterator[str]:
    """Yields how engines and trainer are predicted to work beside each other."""
    spec = roles.spec
    if spec.asynchrony.streamed:
        yield "asynchrony.streamed: learning is counted as if it began once everything is collected"
    if not spec.asynchrony.lag:
        return
    yield "a step takes the longer of collect and learning, and then a weight sync (asynchrony.lag)"
    if spec.placement.trainer == SHARED and not spec.virtual:
        yield "trainer and engines on the same devices together take at least the time that both need there"
    if spec.placement.trainer == LENT:
        yield "engines on devices that the trainer lends generate from when it has learnt"


def _lengths(roles: Roles, assumed: Assumptions) -> Iterator[str]:
    lengths = roles.lengths
    tools = roles.spec.rollout.tools
    yield (
        f"prompts of {lengths.prompt} tokens (median:sigma, --prompt-tokens), responses of {lengths.response} "
        f"(--response-tokens), truncated at {lengths.longest_prompt} and {lengths.longest_response}"
    )
    yield (
        "responses to the same prompt are similar in length: the correlation of their logarithms is "
        f"{assumed.response_correlation:g}"
    )
    if roles.judge is not None:
        yield f"judgements of {lengths.judge} tokens (--judge-tokens), {roles.judge.template_tokens} tokens of template"
    if tools is not None:
        yield f"a tool call takes {assumed.tool_wait_s:g} s and returns half of the tokens allowed"


def _times(
    roles: Roles, cluster: DescribedCluster, assumed: Assumptions, fitted: FittedConstants | None
) -> Iterator[str]:
    """Yields the assumed times; fitted ones are described with the fit."""
    rollout = roles.rollout
    shares = []
    if fitted is None or fitted.token_device_s is None:
        shares.append(f"training at {assumed.training_mfu:.0%} of the card's operations (--training-mfu)")
        if roles.spec.samples_responses:
            yield _sync(roles, cluster)
    if fitted is None or fitted.engine is None or roles.judge is not None:
        shares.append(
            f"prefill at {assumed.prefill_mfu:.0%}, decoding at {assumed.bandwidth_share:.0%} of its bandwidth"
        )
        yield f"each sequence adds {assumed.sequence_share:.0%} of a prompt token's time to a decode step"
    if shares:
        yield ", ".join(shares)
    if isinstance(rollout, TorchRollout):
        yield f"a decode step of the torch engine takes an additional {assumed.torch_step_s * 1e3:g} ms per layer"
    if isinstance(rollout, VllmRollout) and rollout.tensor_parallel_size > 1:
        yield f"an all-reduce takes {assumed.reduce_latency_s * 1e6:g} microseconds per doubling of its devices"
    if roles.trainer.kind in ("megatron", "fsdp2"):
        yield f"an optimizer step takes {assumed.step_fixed_s:g} s in addition to its passes, reduction and update"


def _sync(roles: Roles, cluster: DescribedCluster) -> str:
    node, device = sync_gb_s(roles, cluster)
    to_node = f"{node:g} GB/s to a node and " if cluster.nodes > 1 else ""
    whole = ", as if all weights had changed" if roles.spec.trainer.sync == "delta" else ""
    sent = weights_sent(roles) / GIB
    return f"a weight sync sends {sent:.3g} GiB at {to_node}{device:g} GB/s to a device{whole}; digests are not counted"


def _processes(roles: Roles, cluster: DescribedCluster, assumed: Assumptions) -> Iterator[str]:
    """Yields the assumptions about memory other than tensors."""
    if isinstance(roles.rollout, VllmRollout) or roles.trainer.kind in ("megatron", "fsdp2"):
        yield (
            f"idle roles sleep in host memory ({cluster.host_memory / GIB:.0f} GiB per node) and leave "
            f"{assumed.asleep_runtime / GIB:g} GiB on a device; an active process takes {assumed.engine_runtime / GIB:g} GiB "
            f"in addition to its tensors, and wakes in {assumed.wake_fixed_s:g} s plus the time to copy its weights"
        )
    if "torch" in (roles.rollout.kind, roles.trainer.kind):
        yield f"a process of the torch engines takes {assumed.core_runtime / GIB:g} GiB in addition to its tensors"
