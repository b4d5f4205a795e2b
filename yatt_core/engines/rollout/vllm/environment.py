"""The environment variables that vLLM reads, for the processes of one engine.

The engine's scheduler and its caller are in one process, nothing is downloaded or reported, and sockets stay on this
machine, or on the network of an engine over several nodes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from yatt_core.engines.network import DEVICES, network_device

TUNABLES = "GLIBC_TUNABLES"
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONWARNINGS": "ignore",
        # Without this, joblib creates semaphores in /dev/shm that nobody uses.
        "JOBLIB_MULTIPROCESSING": "0",
        # vLLM adds a name of its own. Sockets whose names begin with @ are no files, so that a kill leaves none behind.
        "VLLM_RPC_BASE_PATH": "@yatt-vllm",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
)
ON_PROCESSORS: Mapping[str, str] = MappingProxyType(
    {
        # Compiling a helper for log-probabilities takes longer than most batches.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        # A device is a core. How several threads share a sum depends on all that is decoded in the step, so that a response has
        # other log-probabilities once another prompt joins it.
        "OMP_NUM_THREADS": "1",
        # GNU's OpenMP has idle threads spin for milliseconds, which they take from the workers of other devices.
        "GOMP_SPINCOUNT": "1000",
        # New weights find a few large pages faster than thousands of small ones; without the setting, glibc has none.
        TUNABLES: "glibc.malloc.hugetlb=1",
        # Several engines on a machine would otherwise bind their workers to the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
)


INVARIANT: Mapping[str, str] = MappingProxyType({"VLLM_BATCH_INVARIANT": "1"})
"""vLLM's mode for GPUs in which kernels add in the same order in every batch; its processes read it when they are started."""


def engine_environment(processors: bool, address: str = "", invariant: bool = False) -> dict[str, str]:
    """Returns the environment of an engine's processes.

    processors: whether the installed build is the one for CPUs.
    address: this node's address for an engine over several nodes.
    invariant: whether responses must have the same bits in every batch; on processors there is no mode for that.

    Raises `InfrastructureError` if no network device has the address.
    """
    found = {**os.environ, **SETTINGS, **(ON_PROCESSORS if processors else {})}
    if invariant and not processors:
        found |= INVARIANT
    if processors and (tunables := os.environ.get(TUNABLES)):
        found[TUNABLES] += f":{tunables}"
    if address:
        device = network_device(address)
        named = {name: os.environ.get(name, form.format(device)) for name, form in DEVICES.items()}
        found |= {"VLLM_HOST_IP": address, **named}
    return found
