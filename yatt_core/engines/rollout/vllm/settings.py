"""The settings of a vLLM engine, as its process gets them.

The keys are those of `rollout.engine` in a spec, which describes them (`VllmRollout`); the process cannot import the spec's
sections, since it lacks the workflow's libraries. The two are compared by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import ConfigurationError


def least_batched_tokens(sequences: int, longest: int, on_processors: bool) -> int:
    """Returns the smallest `max_num_batched_tokens` with which vLLM works.

    A step decodes a token of each of `max_num_seqs` sequences. On processors prompts are also read whole, since vLLM cannot
    sample with a seed there after a prompt that it has read in chunks.

    sequences: `max_num_seqs`.
    longest: maximum number of tokens of a sequence, including its prompt.
    """
    return max(sequences, longest if on_processors else 1)


def batch_mistake(given: int, sequences: int, longest: int, on_processors: bool) -> str:
    """Returns what is wrong with `max_num_batched_tokens`, beginning with that key; empty if nothing.

    given: its value; the others as for `least_batched_tokens`.
    """
    least = least_batched_tokens(sequences, longest, on_processors)
    if given >= least:
        return ""
    why = f"max_num_seqs {sequences}, each of which takes a token of a step"
    if on_processors and longest >= sequences:
        why = f"the {longest} tokens that a prompt with its response may have; on processors vLLM reads prompts whole"
    return f"max_num_batched_tokens: {given} is less than {why}; expected at least {least}"


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """See `VllmRollout`."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    dtype: str
    kv_cache_dtype: str
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    in_flight_update: str

    @property
    def devices(self) -> int:
        """Number of devices of an engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


def settings_of(given: Mapping[str, Any]) -> VllmSettings:
    """Returns the settings that an actor has sent. Raises `ConfigurationError` for keys that vLLM's engine does not have."""
    try:
        return VllmSettings(**given)
    except TypeError as error:
        raise ConfigurationError(f"the vLLM engine does not take these settings: {error}") from error
