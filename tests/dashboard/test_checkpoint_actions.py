"""Actions on checkpoints over HTTP: which checkpoint they affect, what counts as damage, and how many run at a time."""

from __future__ import annotations

import queue
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from db.core.holder import this_process
from flows.run.home import Home
from ops.integrations.promotion import LONGEST_REASON
from ops.web.context import Context
from tests.dashboard.conftest import ORIGIN, Ask
from tests.dashboard.pages import HTML, check_page, links
from tests.ops.cli.test_branches import seed_checkpoint
from tests.ops.seeding import commit_of
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.storage.run_store import NoStore


def test_a_checkpoint_is_verified_byte_by_byte_and_recorded(
    ask: Ask, client: TestClient, served: Context, home: Home
) -> None:
    seed_checkpoint(home, "toy-1", 1)
    listed = client.get("/api/v1/runs/toy-1/checkpoints").json()["checkpoints"]
    assert [row["verification"] for row in listed] == [None]
    sound = ask("toy-1/checkpoints/1/verify")
    assert (sound.status_code, sound.json()["sound"], sound.json()["by"]) == (200, True, "alice")
    state = home.run_folder("toy-1") / listed[0]["checkpoint"]["folder"] / "state"
    state.write_text("state X")
    damaged = ask("toy-1/checkpoints/1/verify").json()
    assert damaged["sound"] is False and "sha256" in damaged["damage"]
    (row,) = client.get("/api/v1/runs/toy-1/checkpoints").json()["checkpoints"]
    assert row["verification"]["by"] == "alice" and row["verification"]["sound"] is False
    assert served.ledger.events.verify("toy-1") is None
    assert ask("toy-1/checkpoints/7/verify").status_code == 409


def test_a_checkpoint_is_promoted_by_name(
    ask: Ask, client: TestClient, served: Context, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr("ops.integrations.promotion.deliver", lambda home, run: told.put(run))
    for iteration in (1, 2):
        seed_checkpoint(home, "toy-1", iteration, f"weights {iteration}")
    for iteration in (1, 2):
        answer = ask("toy-1/promote", to="champion", iteration=iteration, why="wins")
        assert answer.status_code == 200, answer.text
    assert answer.json()["detail"] == "rollback is now iteration 1, champion is now iteration 2"
    assert [told.get(timeout=30) for _ in range(2)] == ["toy-1", "toy-1"]
    aliases = client.get("/api/v1/runs/toy-1/aliases").json()
    assert [(move["alias"], move["iteration"], move["by"], move["why"]) for move in aliases["current"]] == [
        ("champion", 2, "alice", "wins"),
        ("rollback", 1, "alice", "wins"),
    ]
    listed = client.get("/api/v1/runs/toy-1/checkpoints").json()["checkpoints"]
    assert [row["aliases"] for row in listed] == [["champion"], ["rollback"]]
    (home.run_folder("toy-1") / listed[0]["checkpoint"]["folder"] / "state").write_text("state X")
    damaged = ask("toy-1/promote", to="candidate", iteration=2, why="wins")
    assert damaged.status_code == 409 and "sha256" in damaged.json()["detail"]
    assert ask("toy-1/promote", to="candidate", iteration=7, why="wins").status_code == 409
    assert ask("toy-1/promote", to="production", why="wins").status_code == 422
    assert ask("toy-1/promote", to="candidate", why=" ").status_code == 422
    assert ask("toy-1/promote", to="candidate", why="x" * (LONGEST_REASON + 1)).status_code == 422
    assert ask("toy-1/promote", to="candidate", iteration=1, why="x" * LONGEST_REASON).status_code == 200
    assert served.ledger.events.verify("toy-1") is None


def test_an_action_is_on_the_checkpoint_whose_row_was_clicked(
    ask: Ask, client: TestClient, served: Context, home: Home, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iteration 2 has three checkpoints: one that was rolled back, and two of different terms on the current branch."""
    monkeypatch.setattr("ops.integrations.promotion.deliver", lambda home, run: None)
    seed_checkpoint(home, "toy-1", 2, "rolled back")
    fence = served.ledger.leases.acquire("toy-1", this_process("a test"), 600)
    served.ledger.runs.start_branch(fence, 1, "reward fell")
    commit = commit_of(2, served.ledger.commits.at("toy-1", 1).state)  # type: ignore[union-attr]
    served.ledger.commits.commit(fence, replace(commit, branch=1, weights_digest=None))
    served.ledger.leases.release(fence)
    for term in (fence.term, fence.term + 1):
        seed_checkpoint(home, "toy-1", 2, f"of term {term}", 1, term)
    rows = [each["checkpoint"] for each in client.get("/api/v1/runs/toy-1/checkpoints").json()["checkpoints"]]
    keys = [(row["branch"], row["term"]) for row in rows]
    assert len(keys) == 3
    for branch, term in keys:
        found = ask(f"toy-1/checkpoints/2/verify?branch={branch}&term={term}").json()
        assert (found["branch"], found["term"]) == (branch, term)
    for branch, term in keys[:2]:
        answer = ask("toy-1/promote", to="candidate", iteration=2, branch=branch, term=term, why="wins")
        assert answer.status_code == 200, answer.text
        moved = served.ledger.aliases.pointing("toy-1")["candidate"]
        assert (moved.branch, moved.term) == (branch, term)
    refused = ask("toy-1/promote", to="candidate", iteration=2, branch=0, term=1, why="wins")
    assert refused.status_code == 409 and "branch 0, term 1 does not exist on its current" in refused.json()["detail"]
    client.post("/api/v1/session", json={"token": token})
    page = check_page(client.get("/runs/toy-1/checkpoints").text)
    forms = [form for form in page.iter(f"{HTML}form") if form.attrib["action"].endswith(("/verify", "/promote"))]
    fields = [{each.attrib["name"]: each.attrib.get("value") for each in form.iter(f"{HTML}input")} for form in forms]
    assert sorted((int(each["branch"]), int(each["term"])) for each in fields) == sorted(keys * 2)
    lineage = [link for link in links(page) if "lineage?" in link]
    assert len(lineage) == 3
    for link, row in zip(lineage, rows, strict=True):
        assert row["folder"] in client.get(link).text
    form = {name: value for name, value in fields[-1].items() if name in ("iteration", "branch", "term")}
    assert client.post("/runs/toy-1/verify", data=form, headers={"Origin": ORIGIN}).status_code == 200
    (link,) = served.ledger.browse.events("toy-1", 1)
    assert [str(link.body[name]) for name in form] == list(form.values())


def test_few_checkpoints_are_read_at_a_time_so_that_pages_have_threads(
    ask: Ask, client: TestClient, served: Context, checkpoint: Path
) -> None:
    with served.reading(), served.reading():
        for path, body in (("checkpoints/1/verify", {}), ("promote", {"to": "candidate", "why": "wins"})):
            answer = ask(f"toy-1/{path}", **body)
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
            assert "2 checkpoints" in answer.json()["detail"]
        assert client.get("/api/v1/runs").status_code == 200
    assert ask("toy-1/checkpoints/1/verify").status_code == 200
    assert served.ledger.aliases.history("toy-1") == []


def test_a_slow_mlflow_occupies_no_thread_of_the_routes(
    ask: Ask, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("ops.integrations.promotion.deliver", lambda home, run: answered.wait(60) and None)
    began = time.monotonic()
    assert ask("toy-1/promote", to="candidate", iteration=1, why="wins").status_code == 200
    assert time.monotonic() - began < 30 and "promote-toy-1" in [each.name for each in threading.enumerate()]
    answered.set()


# -- what a verification considers damage -------------------------------------------------------------------------------


class SecondTier(NoStore):
    """A durable tier with a copy of a folder of the run folder. away: True if the tier is unreachable."""

    def __init__(self, run_folder: Path, folder: str, away: bool = False) -> None:
        self._target = run_folder / folder
        self._away = away
        self._copy = run_folder.parent / "second tier"
        shutil.copytree(self._target, self._copy)

    def fetch(self, folder: str, manifest_sha256: str | None = None) -> bool:
        if self._away:
            raise InfrastructureError("storage.url s3://bucket: it does not answer")
        shutil.rmtree(self._target, ignore_errors=True)
        shutil.copytree(self._copy, self._target)
        return True


@pytest.fixture
def checkpoint(client: TestClient, home: Home) -> Path:
    """Returns the folder of the checkpoint of toy-1's first iteration."""
    seed_checkpoint(home, "toy-1", 1, "weights 1")
    (row,) = client.get("/api/v1/runs/toy-1/checkpoints").json()["checkpoints"]
    return home.run_folder("toy-1") / row["checkpoint"]["folder"]


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_a_checkpoint_that_is_complete_in_the_object_store_is_sound(
    ask: Ask, home: Home, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr("ops.integrations.promotion.deliver", lambda home, run: None)
    run_folder = home.run_folder("toy-1")
    store = SecondTier(run_folder, str(checkpoint.relative_to(run_folder)))
    monkeypatch.setattr("flows.files.storage.store_of", lambda *_: store)

    def spoil() -> None:
        if state == "missing":
            shutil.rmtree(checkpoint)
        else:
            (checkpoint / "state").write_text("state X")

    spoil()
    assert ask("toy-1/checkpoints/1/verify").json()["sound"] is True
    spoil()
    assert ask("toy-1/promote", to="candidate", iteration=1, why="wins").status_code == 200


def test_an_unreachable_store_is_not_reported_as_damage(
    ask: Ask, served: Context, home: Home, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = home.run_folder("toy-1")
    store = SecondTier(run_folder, str(checkpoint.relative_to(run_folder)), away=True)
    monkeypatch.setattr("flows.files.storage.store_of", lambda *_: store)
    shutil.rmtree(checkpoint)
    before = served.ledger.events.head("toy-1")
    answer = ask("toy-1/checkpoints/1/verify")
    assert answer.status_code == 503 and "does not answer" in answer.json()["detail"]
    assert served.ledger.events.head("toy-1") == before


@pytest.mark.parametrize(
    ("path", "body"), [("checkpoints/1/verify", {}), ("promote", {"to": "candidate", "iteration": 1, "why": "wins"})]
)
@pytest.mark.parametrize("failure", [DataError("cut off"), InfrastructureError("the store is away"), None])
def test_a_checkpoint_pruned_during_the_read_is_neither_damaged_nor_sound(
    ask: Ask,
    served: Context,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    failure: Exception | None,
) -> None:
    def pruned_under_way(*_: Any) -> None:
        fence = served.ledger.leases.acquire("toy-1", this_process("a test"), 600)
        served.ledger.records.checkpoint_pruned(fence, served.ledger.records.own_checkpoints("toy-1")[0])
        served.ledger.leases.release(fence)
        if failure is not None:
            raise failure

    monkeypatch.setattr("flows.files.storage.verify_kept", pruned_under_way)
    answer = ask(f"toy-1/{path}", **body)
    assert answer.status_code == 409 and "was pruned meanwhile" in answer.json()["detail"]
    assert served.ledger.events.of_kind("toy-1", "checkpoint_verified") == []
