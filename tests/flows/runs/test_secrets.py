"""Secrets by reference in real runs: the value reaches the endpoint, and nothing that the run leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.flows.tools import SECONDS, Driver
from tests.judges.server import Reply, completion, serving

VALUE = "k3y-that-must-not-leak"
ITERATIONS = 2


def reference(kind: str, folder: Path, services: Mapping[str, str]) -> dict[str, str]:
    """Stores the secret in a file or in a Prefect block; returns the reference to it."""
    if kind == "file":
        path = folder / "key"
        path.write_text(VALUE)
        path.chmod(0o600)
        return {"file": str(path)}
    save = "from prefect.blocks.system import Secret; import sys; Secret(value=sys.argv[1]).save('judge-key', overwrite=True)"
    environment = {**os.environ, **services}
    subprocess.run(
        [sys.executable, "-c", save, VALUE], env=environment, check=True, timeout=SECONDS, capture_output=True
    )
    return {"prefect_block": "judge-key"}


@pytest.mark.verify
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["file", "prefect_block"])
def test_a_run_leaves_no_trace_of_its_endpoints_key(
    driver: Driver, tmp_path: Path, service_environment: Mapping[str, str], kind: str
) -> None:
    credential = reference(kind, tmp_path, service_environment)

    def answer(body: object, number: int) -> Reply:
        # The last answer refuses the key and repeats it, which ends the run with an error.
        return Reply(body=completion("yes")) if number < 64 else Reply(401, {"error": f"wrong key {VALUE}"})

    with serving(answer) as server:
        part = {
            "name": "others", "kind": "endpoint", "url": server.url, "model": "m", "seeded": True,
            "template": "{prompt} {response}", "credential": credential,
        }  # fmt: skip
        exact = {"name": "exact", "function": "exact_match", "weight": 0}
        changes = (
            "placement.mode=colocate",
            "rollout.max_new_tokens=12",
            "evaluation.every=0",
            f"iterations={ITERATIONS + 1}",
        )
        run = driver.create("virtual.yaml", f"rewards.parts={json.dumps([exact, part])}", *changes)
        output = driver.drive(run, expect=2)
        assert all(headers["Authorization"] == f"Bearer {VALUE}" for headers in server.headers)
    assert len(server.bodies) > 64
    shown = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", "--home", str(driver.folder), "show", run, "-o", "json"],
        capture_output=True, text=True, check=True, timeout=SECONDS,
    ).stdout  # fmt: skip
    assert "not authorised" in output and VALUE not in output + shown
    files = [path for path in driver.folder.rglob("*") if path.is_file()]
    assert any(path.name == "ledger.db" for path in files) and len(files) > 20
    assert [path for path in files if VALUE.encode() in path.read_bytes()] == []
