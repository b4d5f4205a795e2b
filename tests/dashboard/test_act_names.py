"""Every act over HTTP is recorded in the audit chain under the name of the person who asked for it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from flows.run.home import Home
from ops.web.context import Context
from tests.dashboard.conftest import Ask
from tests.ops.cli.test_branches import seed_checkpoint


def test_every_act_names_who(
    ask: Ask,
    client: TestClient,
    served: Context,
    home: Home,
    alice: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ops.driver_process.sys.executable", "/bin/true")
    monkeypatch.setattr("ops.integrations.promotion.deliver", lambda home, run: None)
    for iteration in (0, 1, 2):
        seed_checkpoint(home, "toy-1", iteration, f"weights {iteration}")
    acts: list[tuple[str, dict[str, Any], str]] = [
        ("toy-2/stop", {}, "desired_state"),
        ("toy-2/checkpoint", {}, "checkpoint_requested"),
        ("toy-1/tags", {"add": ["baseline"]}, "tags"),
        ("toy-1/checkpoints/1/verify", {}, "checkpoint_verified"),
        ("toy-1/promote", {"to": "candidate", "iteration": 1, "why": "best"}, "promotion"),
        ("toy-1/archive", {}, "archived"),
        ("toy-1/rollback", {"to": 1}, "branch"),
        ("toy-1/resume", {}, "resume_requested"),
    ]
    for path, body, _ in acts:
        answer = ask(path, **body)
        assert answer.status_code in (200, 202), answer.text
    assert client.put("/api/v1/runs/toy-1/note", json={"text": "x"}, headers=alice).status_code == 200
    links = [link for run in ("toy-1", "toy-2") for link in served.ledger.events.links(run)]
    named = [link.kind for link in links if link.body.get("by") == "alice"]
    for _, _, kind in [*acts, ("", {}, "note")]:
        assert kind in named, (kind, named)
