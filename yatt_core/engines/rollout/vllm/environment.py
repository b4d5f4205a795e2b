"""The environment variables that vLLM reads: set in this process before vLLM is imported, and only then.

One process holds the whole engine, nothing is downloaded or reported, and the sockets of its one-process
group stay on this machine.
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
        # Compiling a helper for log-probabilities takes longer than most batches.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
)


def prepare_environment(processors: bool) -> None:
    """Prepares this process for vLLM.

    processors: whether the installed build is the one for CPUs.
    """
    os.environ.update(SETTINGS)
    if processors:
        os.environ.update(ON_PROCESSORS)
        if (dynamo := sys.modules.get("torch._dynamo.config")) is not None:
            dynamo.disable = True  # type: ignore[attr-defined]  # its variable has already been read
