"""The settings of a vLLM engine, as its process gets them.

The keys are those of `rollout.engine` in a spec, which describes them (`VllmRollout`); the process cannot import the spec's
sections, since it lacks the workflow's libraries. The two are compared by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yatt_core.errors import ConfigurationError


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
