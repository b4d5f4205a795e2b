"""What vLLM reads from the environment: set in this process before it is imported, and only then.

One process holds the whole engine, nothing is fetched or reported, and what it opens for its own group of one process stays on
this machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
)
ON_PROCESSORS: Mapping[str, str] = MappingProxyType(
    {
        # A compiled helper of the log-probabilities takes longer to build than most batches take.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
)


def prepare_environment(processors: bool) -> None:
    """Makes this process fit for vLLM. processors: its build is the one for CPUs."""
    os.environ.update(SETTINGS)
    if processors:
        os.environ.update(ON_PROCESSORS)
        if (dynamo := sys.modules.get("torch._dynamo.config")) is not None:
            dynamo.disable = True  # type: ignore[attr-defined]  # it has read its variable already
