"""The queue over HTTP: its page, and changes in the token holder's name."""

from __future__ import annotations

from fastapi.testclient import TestClient

from flows.queueing.pools_file import pools_file
from ops.web.context import Context
from tests.dashboard.pages import BROWSER, check_page, words

POOLS = "pools: {main: {devices: 4}, spot: {devices: 2, spot: true}}\n"


def test_reading_needs_no_token_and_no_pools(client: TestClient) -> None:
    assert client.get("/api/v1/queue").json()["pools"] == []
    page = words(check_page(client.get("/queue", headers=BROWSER).text))
    assert "yatt queue init" in page


def test_runs_are_submitted_and_changed_in_the_callers_name(
    client: TestClient, alice: dict[str, str], served: Context
) -> None:
    pools_file(served.home).write_text(POOLS)
    path = "/api/v1/queue/runs/toy-1"
    assert client.post(path, json={"pools": ["main"]}).status_code == 401
    answer = client.post(path, json={"pools": ["spot", "main"], "priority": 1}, headers=alice)
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["entries"]
    assert (entry["run"], entry["owner"], entry["pools"]) == ("toy-1", "alice", ["spot", "main"])
    assert client.post(path, json={"pools": ["main"]}, headers=alice).status_code == 409
    changed = client.patch(path, json={"action": "pause", "priority": 5}, headers=alice).json()["entries"][0]
    assert (changed["wanted"], changed["priority"]) == ("hold", 5)
    assert client.patch(path, json={"action": "end"}, headers=alice).status_code == 422
    assert client.patch("/api/v1/queue/runs/none", json={"priority": 1}, headers=alice).status_code == 404
    page = words(check_page(client.get("/queue", headers=BROWSER).text))
    assert "toy-1" in page and "held back" in page


def test_devices_are_reported(client: TestClient, alice: dict[str, str], served: Context) -> None:
    pools_file(served.home).write_text(POOLS)
    path = "/api/v1/queue/pools/spot/devices"
    assert client.post(path, json={"lost": [1]}).status_code == 401
    pools = {pool["name"]: pool for pool in client.post(path, json={"lost": [1]}, headers=alice).json()["pools"]}
    assert pools["spot"]["away"] == [1]
    assert client.post(path, json={"lost": [7]}, headers=alice).status_code in (409, 422)
    text = client.get("/metrics").text
    assert 'yatt_queue_away_devices{pool="spot"} 1.0' in text and "yatt_queue_scheduler_up 0.0" in text
