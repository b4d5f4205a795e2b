"""The JSON API over a ledger and run folders, and its handling of hostile names and texts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from db.ledger import Ledger
from flows.run.home import Home
from ops.queries.accounts import accounts
from ops.queries.log_files import log_files
from ops.web.context import Context
from tests.ops.seeding import SHARDS, toy_spec
from yatt_core.experience.batch import SAMPLES_FILE

HOSTILE = (
    "<script>alert(1)</script>",
    "'; DROP TABLE run; --",
    '" onmouseover="x',
    "%' OR '1'='1",
    "..",
    "a_b%c",
    "\u202eevil",
    "{{7*7}}",
    "-rf",
)


def test_the_run_list_is_paged_searched_and_counted(reader: TestClient) -> None:
    run_list = reader.get("/api/v1/runs").json()
    assert [(run["id"], run["state"], run["driver"]) for run in run_list["runs"]] == [
        ("toy-2", "running", "driven"),
        ("toy-1", "stopped", "nobody"),
    ]
    assert (run_list["total"], run_list["states"]) == (2, {"running": 1, "stopped": 1})
    assert run_list["runs"][0]["reward"] == 0.2 and run_list["runs"][0]["progress"] == 0.5
    assert [run["id"] for run in reader.get("/api/v1/runs?limit=1&offset=1").json()["runs"]] == ["toy-1"]
    assert [run["id"] for run in reader.get("/api/v1/runs?state=stopped").json()["runs"]] == ["toy-1"]
    assert [run["id"] for run in reader.get("/api/v1/runs?text=Y-2").json()["runs"]] == ["toy-2"]


def test_a_lost_driver_is_distinguished_from_a_living_one(client: TestClient, served: Context) -> None:
    with served.ledger._database.write() as connection:
        connection.execute(text("UPDATE lease SET expires_at = 0 WHERE run = 'toy-2'"))
    line = client.get("/api/v1/runs/toy-2").json()["run"]
    assert (line["driver"], line["eta_seconds"]) == ("lost", None)
    assert line["holder"].startswith("driver of toy-2")


def test_a_run_shows_its_time_phases_and_health(reader: TestClient) -> None:
    view = reader.get("/api/v1/runs/toy-1").json()
    assert view["metrics"]["reward/mean"] == 0.2
    assert view["health"] == ["reward/mean", "evaluation/accuracy", "entropy"]
    assert [(phase["phase"], phase["done"]) for phase in view["phases"]] == [("collect", 2)]
    assert sum(view["time"]["buckets"].values()) == pytest.approx(view["time"]["wall_seconds"])
    assert view["outbox_pending"] == 3 and view["time"]["since"] is None


def test_accounts_are_not_recomputed_for_an_older_head(served: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that began first may finish last, with an older head than the cached accounts."""
    newest = accounts(served.ledger, "toy-1")
    head = served.ledger.events.head("toy-1")
    monkeypatch.setattr(served.ledger.events, "head", lambda _: replace(head, seq=head.seq - 1))
    assert accounts(served.ledger, "toy-1") is newest


def test_rollouts_are_searched_sorted_limited_and_compared(reader: TestClient) -> None:
    path = "/api/v1/runs/toy-1/rollouts/1"
    best = reader.get(f"{path}?order=reward&limit=2").json()
    assert [row["reward"] for row in best["samples"]] == pytest.approx([0.13, 0.12])
    assert (best["total"], best["matching"]) == (8, 8)
    found = reader.get(f"{path}?text=ANSWER 1.0&characters=3").json()
    assert [(row["response"], row["response_cut"], row["characters"]) for row in found["samples"]] == [
        ("ans", True, 10)
    ]
    assert [row["sample"] for row in reader.get(f"{path}?prompt=2").json()["samples"]] == [0, 1]
    compared = reader.get(f"{path}/compare/2").json()
    assert compared["before"]["samples"] == compared["after"]["samples"] == 8
    assert sum(compared["before"]["counts"]) == 8
    assert [row["prompt_id"] for row in compared["prompts"]] == ["p0", "p1", "p2", "p3"]
    grouped = reader.get(f"{path}/groups", params={"where": ["reward > 0.1", "sample = 1"], "order": "virtual"}).json()
    assert [(row["prompt_id"], row["matching"], len(row["samples"])) for row in grouped["groups"]] == [
        ("p3", 1, 2),
        ("p2", 1, 2),
        ("p1", 1, 2),
    ]
    pairs = reader.get(f"{path}/compare/2/groups?limit=1").json()["pairs"]
    assert [(row["same"], row["before"]["prompt_id"], row["after"]["prompt_ordinal"]) for row in pairs] == [
        (True, "p0", 4)
    ]
    for query in ("order=best", "where=reward", "where=rewrad=1"):
        assert reader.get(f"{path}?{query}").status_code == 422, query
    missing = reader.get("/api/v1/runs/toy-1/rollouts/9")
    assert missing.status_code == 404 and "no experience of iteration 9" in missing.json()["detail"]


def test_experience_that_differs_from_its_record_is_not_shown(client: TestClient, home: Home) -> None:
    files = sorted((home.run_folder("toy-1") / "experience").rglob(SAMPLES_FILE))
    assert len(files) == 2 * SHARDS
    assert client.get("/api/v1/runs/toy-1/rollouts/1").status_code == 200
    whole = files[0].read_bytes()
    for changed in (whole + b"x", whole[:-9] + b"x" + whole[-8:]):
        files[0].write_bytes(changed)
        answer = client.get("/api/v1/runs/toy-1/rollouts/1")
        assert answer.status_code == 409 and answer.json()["detail"].startswith(f"{files[0]}: ")


def test_missing_experience_is_not_reported_as_damage(client: TestClient, home: Home) -> None:
    shutil.rmtree(home.run_folder("toy-1") / "experience")
    answer = client.get("/api/v1/runs/toy-1/rollouts/1")
    assert answer.status_code == 409
    assert str(home.run_folder("toy-1")) in answer.json()["detail"] and "`yatt rollouts`" in answer.json()["detail"]


def test_logs_are_filtered_by_actor_phase_iteration_and_level(reader: TestClient) -> None:
    def messages(query: str) -> list[str]:
        return [row["message"] for row in reader.get(f"/api/v1/runs/toy-1/logs?{query}").json()["records"]]

    assert messages("") == ["driver started, pid 7", "shard 0", "shard 1", "slow"]
    assert messages("actor=controller") == ["shard 0", "shard 1"]
    assert messages("phase=learn") == ["slow"]
    assert messages("iteration=2") == ["shard 1"]
    assert messages("level=warning") == ["shard 1", "slow"]
    assert messages("limit=1") == ["slow"]
    assert [reader.get(f"/api/v1/runs/toy-1/logs?limit={limit}").json()["whole"] for limit in (3, 4)] == [False, True]
    assert reader.get("/api/v1/runs/toy-1/logs").json()["actors"] == ["controller-0", "driver"]


def test_an_actors_number_is_matched_as_a_whole(client: TestClient, home: Home) -> None:
    folder = home.run_folder("toy-1") / "logs"
    for actor in ("controller-1", "controller-10"):
        record = {"time": 5.0, "level": "info", "actor": actor, "message": f"by {actor}"}
        (folder / f"t0001.{actor}.jsonl").write_text(json.dumps(record) + "\n")

    def messages(actor: str) -> list[str]:
        records = client.get(f"/api/v1/runs/toy-1/logs?actor={actor}").json()["records"]
        return [row["message"] for row in records if row["message"].startswith("by ")]

    assert messages("controller-1") == ["by controller-1"]
    assert messages("controller-10") == ["by controller-10"]
    assert sorted(messages("controller")) == ["by controller-1", "by controller-10"]


def test_a_log_part_deleted_during_the_read_is_left_out(
    client: TestClient, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = log_files(home.run_folder("toy-1") / "logs")
    monkeypatch.setattr("ops.queries.logs.log_files", lambda _: listed)
    listed[0].unlink()
    answer = client.get("/api/v1/runs/toy-1/logs")
    assert answer.status_code == 200 and answer.json()["records"]


def test_only_the_ends_of_long_logs_are_read(client: TestClient, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.queries.logs.TAIL_BYTES", 1000)
    line = {"time": 5.0, "level": "info", "actor": "driver", "message": "many"}
    with (home.run_folder("toy-1") / "logs" / "t0001.driver.jsonl").open("a") as stream:
        stream.writelines(json.dumps(line | {"message": f"many {number}"}) + "\n" for number in range(1000))
    answer = client.get("/api/v1/runs/toy-1/logs?limit=500").json()
    assert answer["whole"] is False
    assert answer["records"][-1]["message"] == "many 999"
    assert 10 < len(answer["records"]) < 30


def test_lists_have_limits(reader: TestClient) -> None:
    paths = reader.get("/api/v1/openapi.json").json()["paths"]
    for path in (
        "/runs",
        "/runs/{run_id}/placements",
        "/runs/{run_id}/rollouts/{iteration}",
        "/runs/{run_id}/checkpoints",
        "/runs/{run_id}/faults",
        "/runs/{run_id}/logs",
        "/runs/{run_id}/events",
    ):
        parameters = {each["name"]: each["schema"] for each in paths[f"/api/v1{path}"]["get"]["parameters"]}
        assert parameters["limit"]["maximum"] <= 500 and parameters["limit"]["minimum"] == 1, path
        filled = path.format(run_id="toy-1", iteration=1)
        assert reader.get(f"/api/v1{filled}?limit=501").status_code == 422
        assert reader.get(f"/api/v1{filled}?limit=0").status_code == 422


@pytest.mark.parametrize("name", ["../toy-1", "..", "toy-1/..", "/etc/passwd", "toy-1\x00", "toy-", "TOY-1", *HOSTILE])
def test_only_names_from_the_ledger_are_looked_up(reader: TestClient, name: str) -> None:
    given = quote(name, safe="")
    for rest in ("", "/logs", "/rollouts/1", "/lineage", "/checkpoints", "/live", "/placements/1", "/series?key=loss"):
        answer = reader.get(f"/api/v1/runs/{given}{rest}")
        assert answer.status_code in (404, 422), (name, rest)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "passwd:" not in answer.text and "root:" not in answer.text


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_search_texts_are_plain_text(reader: TestClient, words: str) -> None:
    for path in ("/api/v1/runs", "/api/v1/runs/toy-1/rollouts/1"):
        answer = reader.get(path, params={"text": words}).json()
        assert answer.get("runs", answer.get("samples")) == []
    assert reader.get("/api/v1/runs/toy-1/logs", params={"actor": words}).json()["records"] == []
    assert reader.get("/api/v1/runs/toy-1/events", params={"kind": words}).json() == []
    assert reader.get("/api/v1/runs/toy-1/series", params={"key": words}).json()["series"][0]["steps"] == []
    assert reader.get("/api/v1/runs").json()["total"] == 2


def test_a_request_text_with_a_nul_is_refused(reader: TestClient) -> None:
    """Otherwise, PostgreSQL would reject it with an error of its own."""
    for path, name in (
        ("/api/v1/runs", "text"),
        ("/api/v1/runs/toy-1/rollouts/1", "text"),
        ("/api/v1/runs/toy-1/logs", "actor"),
        ("/api/v1/runs/toy-1/logs", "phase"),
        ("/api/v1/runs/toy-1/events", "kind"),
        ("/api/v1/runs/toy-1/series", "key"),
        ("/api/v1/compare?run=toy-1", "key"),
        ("/api/v1/compare", "run"),
        ("/compare", "run"),
        ("/", "text"),
        ("/runs/toy-1/logs", "actor"),
    ):
        assert reader.get(path, params={name: "\x00"}).status_code == 422, (path, name)


@pytest.mark.parametrize(
    ("path", "where", "says"),
    [
        ("/api/v1/runs?state=gone", "state", "created, running, waiting, stopped, paused, failed, completed"),
        ("/api/v1/runs?text=%00", "text", "NUL"),
        ("/api/v1/runs/toy-1/logs?level=loud", "level", "debug, info, warning, error, critical"),
        ("/api/v1/runs/toy-1/checkpoints?before=1", "before", "`next`, such as 2.0.1"),
        ("/api/v1/runs/toy-1/checkpoints?before=1.2.3%0A", "before", "`next`, such as 2.0.1"),
        ("/?state=gone", "state", "created, running"),
        ("/runs/toy-1/logs?iteration=x", "iteration", "nine digits"),
    ],
)
def test_an_invalid_text_is_refused_with_the_expected_form(
    reader: TestClient, path: str, where: str, says: str
) -> None:
    answer = reader.get(path)
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert detail.startswith(f"query.{where}: ") and says in detail and "pattern" not in answer.text


@pytest.mark.parametrize(
    ("body", "sent_as", "says"),
    [('{"reason": ', "application/json", "character 11"), ('{"reason": ""}', "text/plain", "application/json")],
)
def test_a_body_that_cannot_be_read_is_explained(
    client: TestClient, alice: dict[str, str], body: str, sent_as: str, says: str
) -> None:
    answer = client.post("/api/v1/runs/toy-1/stop", content=body, headers={**alice, "Content-Type": sent_as})
    assert answer.status_code == 422
    (mistake,) = answer.json()["errors"]
    assert mistake["where"] == "body" and says in mistake["what"]


def test_an_invalid_value_is_not_repeated_in_full(client: TestClient, alice: dict[str, str]) -> None:
    long = "x" * 10_000
    answers = [
        client.get(f"/api/v1/runs/{long}"),
        client.get(f"/api/v1/{long}"),
        client.post("/api/v1/runs/toy-2/stop", json={long: 1}, headers=alice),
    ]
    for answer, status in zip(answers, (422, 404, 422), strict=True):
        assert answer.status_code == status
        assert "…" in answer.text and len(answer.text) < 3_000


def test_runs_with_hostile_names_are_shown_as_they_are(client: TestClient, served: Context) -> None:
    spec = toy_spec()
    document = spec.model_dump(mode="json")
    runs = [served.ledger.runs.create(name, document, spec.digest, 4).id for name in HOSTILE]
    listed = {run["id"] for run in client.get("/api/v1/runs").json()["runs"]}
    assert listed == {"toy-1", "toy-2", *runs}
    exported = client.get("/metrics")
    assert exported.headers["content-type"].startswith("text/plain")
    for run in runs:
        answer = client.get(f"/api/v1/runs/{quote(run, safe='')}")
        if "/" in run:  # A path cannot hold it, so nothing is found.
            assert answer.status_code == 404
        else:
            assert answer.json()["run"]["id"] == run
        assert answer.headers["content-type"].startswith("application/")
        label = run.replace("\\", "\\\\").replace('"', '\\"')
        assert f'yatt_run_iteration{{run="{label}"}} -1.0' in exported.text.splitlines()


def test_a_symlink_in_the_log_folder_is_not_followed(client: TestClient, home: Home, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps({"time": 1.0, "level": "info", "message": "secret"}) + "\n")
    (home.run_folder("toy-1") / "logs" / "t0009.driver.jsonl").symlink_to(secret)
    assert "secret" not in client.get("/api/v1/runs/toy-1/logs").text


def test_runs_are_compared(client: TestClient, home: Home) -> None:
    spec = toy_spec(9)
    with Ledger.open(home.ledger) as ledger:
        ledger.runs.create("toy", spec.model_dump(mode="json"), spec.digest, 9)
    answer = client.get("/api/v1/compare?run=toy-1&run=toy-3&key=entropy").json()
    assert answer["differences"] == [{"key": "iterations", "values": {"toy-1": "4", "toy-3": "9"}}]
    assert {"key": "entropy", "values": {"toy-1": 2.0}} in answer["metrics"]
    assert [series["series"][0]["mean"] for series in answer["series"]] == [[2.0, 2.0], []]


def test_an_unreachable_ledger_is_reported(client: TestClient, home: Home) -> None:
    ledger = Path(home.ledger.removeprefix("sqlite:///"))
    ledger.rename(ledger.with_suffix(".away"))
    ledger.mkdir()
    client.app.state.context.ledger.close()  # type: ignore[attr-defined]  (closes connections that are already open)
    answer = client.get("/api/v1/runs")
    assert answer.status_code == 503 and answer.json()["title"] == "Service Unavailable"
    assert "yatt_ledger_up 0.0" in client.get("/metrics").text
