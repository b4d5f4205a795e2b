"""The shutdown of the head pod of `ops/deploy/kubernetes`: the unchanged hook, in a separate process namespace."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import ops.driver_process
from tests.services import ROOT

OWN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
INSTALLED = f"yatt.{ops.driver_process.__package__}.cli.main"
"""The module of a driver that the dashboard or the queue has started from an installation."""
DRIVERS = ("prefect.engine", "yatt", INSTALLED)
DRIVER = """trap 'echo asked >> "$said"; let end--' TERM; touch "$said"; while [ "$end" -gt 0 ]; do sleep 0.1; done"""
"""A stand-in for a process, which ends after it has received SIGTERM $end times."""
CLOCK = """unset SECONDS; SECONDS={early}
sleep() {{ command sleep 0.1; [ -s prefect.engine ] && [ -s yatt ] && SECONDS={late}; }}
"""
"""A clock for the hook: the time to signal again comes once both drivers have been asked, however slow the machine is."""


def head_pod() -> dict[str, Any]:
    cluster = YAML(typ="safe").load((ROOT / "ops/deploy/kubernetes/raycluster.yaml").read_text())
    pod: dict[str, Any] = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    return pod


def hook() -> list[str]:
    command: list[str] = head_pod()["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    return command


def has_namespaces() -> bool:
    try:
        return subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_hook(folder: Path, script: str, times: int) -> dict[str, str]:
    """Runs the hook; returns the log of each stand-in: drivers by their ways to be started, and a Ray process."""
    lines = [f"cd {folder}; export end={times}"]
    for name in ("prefect.engine", "/usr/local/bin/yatt", INSTALLED, "raylet"):
        said = name.rpartition("/")[2]
        lines.append(f'said={said} bash -c "$DRIVER" {name} &')
    lines += [f"until [ -e {name} ]; do sleep 0.1; done" for name in ("prefect.engine", "yatt", INSTALLED, "raylet")]
    lines += ['/bin/bash -c "$HOOK"; echo over']
    environment = {"HOOK": script, "DRIVER": DRIVER, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*OWN_NAMESPACE, "bash", "-c", "\n".join(lines)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "over\n", done.stderr
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.skipif(not has_namespaces(), reason="users cannot create process namespaces on this machine")
def test_drivers_are_signalled_once_and_awaited(tmp_path: Path) -> None:
    assert run_hook(tmp_path, hook()[2], times=1) == dict.fromkeys(DRIVERS, "asked\n") | {"raylet": ""}


@pytest.mark.skipif(not has_namespaces(), reason="users cannot create process namespaces on this machine")
def test_a_driver_that_does_not_end_is_signalled_again_in_time(tmp_path: Path) -> None:
    script = hook()[2]
    late = int(script.partition('"$SECONDS" -ge ')[2].split()[0])
    assert late < head_pod()["terminationGracePeriodSeconds"] - 30
    said = run_hook(tmp_path, f"{CLOCK.format(early=late - 1, late=late)}{script}", times=2)
    assert said == dict.fromkeys(DRIVERS, "asked\nasked\n") | {"raylet": ""}
