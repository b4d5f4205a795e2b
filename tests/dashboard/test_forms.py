"""Forms: signing in, acting in one's own name, refusals as pages with the reason; and the files that pages load."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from db.core.holder import this_process
from flows.run.home import Home
from ops.web.context import Context
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER, HTML, check_page, parsed, words
from tests.ops.cli.test_branches import seed_checkpoint
from tests.ops.seeding import toy_spec
from yatt_core.errors import InfrastructureError
from yatt_core.inputs.manifest import INPUTS
from yatt_core.spec import RunSpec, parse_spec
from yatt_core.spec.reading.documents import parse_yaml, yaml_text

OURS = BROWSER | {"Origin": ORIGIN}
"""The headers that a browser sends with a form of one of our pages."""
ACTIONS: dict[str, dict[str, str]] = {
    "stop": {},
    "checkpoint": {},
    "try-now": {},
    "resume": {},
    "retry": {"iteration": "3", "phase": "collect"},
    "rollback": {"to": "1"},
    "fork": {"at": "1"},
    "settings": {"overrides": "iterations=9"},
    "verify": {"iteration": "1"},
    "promote": {"to": "champion", "iteration": "1", "why": "best so far"},
    "archive": {},
    "delete": {},
    "note": {"text": "x"},
    "tags": {"add": "x"},
}

ELSEWHERE = ("//evil.example", "/\\evil.example", "http://evil.example", "javascript:alert(1)", "/\t/evil.example", "x")


def sign_in(client: TestClient, token: str, **fields: str) -> None:
    answer = client.post("/sign-in", data={"token": token} | fields, headers=OURS, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == fields.get("next", "/")
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=strict" in answer.headers["set-cookie"]


def test_a_form_without_a_token_is_refused(client: TestClient, served: Context) -> None:
    before = served.ledger.events.head("toy-2").seq
    for action, fields in ACTIONS.items():
        answer = client.post(f"/runs/toy-2/{action}", data=fields, headers=OURS)
        assert answer.status_code == 401, action
        assert "`yatt token create NAME`" in words(check_page(answer.text))
    assert served.ledger.events.head("toy-2").seq == before


def test_a_stop_is_recorded_in_the_name_of_the_signed_in_user(client: TestClient, served: Context, token: str) -> None:
    sign_in(client, token, next="/runs/toy-2")
    page = client.get("/runs/toy-2", headers=BROWSER)
    check_page(page.text)
    assert 'action="/sign-out"' in page.text and 'action="/runs/toy-2/stop"' in page.text
    stop = {"reason": "enough", "within_seconds": ""}
    for elsewhere in ({"Origin": "http://evil.example"}, {}):
        assert client.post("/runs/toy-2/stop", data=stop, headers=elsewhere).status_code == 403
    assert served.ledger.runs.desired_state("toy-2") == "run"
    answer = client.post("/runs/toy-2/stop", data=stop, headers=OURS)
    assert "was asked to stop" in words(check_page(answer.text))
    assert served.ledger.runs.desired_state("toy-2") == "stop"
    (link,) = served.ledger.events.of_kind("toy-2", "desired_state")
    assert link.body["reason"] == "alice, through the dashboard: enough"
    assert 'action="/runs/toy-2/stop"' not in client.get("/runs/toy-2").text
    client.post("/sign-out", headers=OURS)
    assert "Sign in to act" in client.get("/runs/toy-2").text


def test_a_run_offers_the_possible_actions(client: TestClient, token: str) -> None:
    sign_in(client, token)
    driven = client.get("/runs/toy-2").text
    idle = client.get("/runs/toy-1").text
    offered = {run: {name for name in ACTIONS if f'/{name}"' in text} for run, text in (("2", driven), ("1", idle))}
    idle_actions = {"resume", "rollback", "settings", "archive", "delete"}
    assert offered == {
        "2": {"stop", "checkpoint", "fork", "note", "tags"},
        "1": {*idle_actions, "fork", "note", "tags"},
    }


@pytest.mark.parametrize("phase", ["collect", "recover"])
def test_every_offered_retry_is_accepted(
    client: TestClient, served: Context, token: str, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Recovery has the budget of the last commit, every other phase that of the next iteration."""
    monkeypatch.setattr("ops.dashboard.actions.start_driver", lambda **_: 7)
    fence = served.ledger.leases.acquire("toy-1", this_process("a test"), 600)
    failed = served.ledger.phases.plan(fence, 0, 2 if phase == "recover" else 3, phase)
    served.ledger.phases.dispatch(fence, failed)
    served.ledger.phases.fail(fence, failed, "infrastructure", "an actor was lost")
    served.ledger.runs.set_state(fence, "failed", "too often")
    served.ledger.leases.release(fence)
    sign_in(client, token)
    page = check_page(client.get("/runs/toy-1").text)
    (form,) = (form for form in page.iter(f"{HTML}form") if form.attrib["action"].endswith("/retry"))
    fields = {each.attrib["name"]: each.attrib.get("value", "") for each in form.iter(f"{HTML}input")}
    (chosen,) = (each.attrib["value"] for each in form.iter(f"{HTML}option") if "selected" in each.attrib)
    assert chosen == phase
    answer = client.post("/runs/toy-1/retry", data=fields | {"phase": chosen}, headers=OURS)
    assert answer.status_code == 200, words(parsed(answer.text))


def test_drift_is_accepted_by_ticking_the_box(client: TestClient, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[bool] = []
    monkeypatch.setattr(
        "ops.dashboard.actions.start_driver", lambda **given: accepted.append(given["accept_drift"]) or 7
    )
    sign_in(client, token)
    page = check_page(client.get("/runs/toy-1").text)
    (box,) = (each.attrib for each in page.iter(f"{HTML}input") if each.get("name") == "accept_drift")
    for fields in ({}, {box["name"]: box["value"]}):
        assert client.post("/runs/toy-1/resume", data=fields | {"reason": ""}, headers=OURS).status_code == 200
    assert accepted == [False, True]


def test_an_incomplete_form_is_refused_with_a_page(client: TestClient, token: str) -> None:
    sign_in(client, token)
    for fields in ({}, {"to": "x"}, {"to": "-1"}, {"to": "1", "also": "this"}):
        answer = client.post("/runs/toy-1/rollback", data=fields, headers=OURS)
        assert answer.status_code == 422, fields
        assert ("also" if "also" in fields else "to") in words(check_page(answer.text))


def test_an_impossible_action_is_reported_on_a_page(client: TestClient, token: str) -> None:
    sign_in(client, token)
    answer = client.post("/runs/toy-2/rollback", data={"to": "1"}, headers=OURS)
    assert answer.status_code == 409
    assert "driver of toy-2" in words(check_page(answer.text))


def test_a_wrong_token_is_refused_and_not_repeated(client: TestClient) -> None:
    answer = client.post("/sign-in", data={"token": "yatt_guess"}, headers=OURS)
    assert answer.status_code == 401
    assert "`yatt token list`" in words(check_page(answer.text)) and "yatt_guess" not in answer.text
    assert not client.cookies


def test_signing_in_leads_to_our_own_pages_only(client: TestClient, token: str) -> None:
    for address in ELSEWHERE:
        fields = {"token": token, "next": address}
        answer = client.post("/sign-in", data=fields, headers=OURS, follow_redirects=False)
        assert answer.headers["location"] == "/", address


def test_errors_are_pages_for_people_and_problems_for_programs(client: TestClient) -> None:
    for path in ("/runs/none", "/nowhere", "/runs/toy-1/logs?iteration=x", "/runs/toy-1/nothing"):
        page = client.get(path, headers=BROWSER)
        assert page.status_code in (404, 422) and page.headers["content-type"].startswith("text/html")
        check_page(page.text)
        assert client.get(path).headers["content-type"] == "application/problem+json"
    api = client.get("/api/v1/runs/none", headers=BROWSER)
    assert api.headers["content-type"] == "application/problem+json"


def test_a_token_file_readable_by_others_is_reported_on_a_page(client: TestClient, home: Home, token: str) -> None:
    sign_in(client, token)
    (home.folder / "tokens.json").chmod(0o644)
    for path in ("/", "/runs/toy-1", "/nowhere"):
        page = client.get(path, headers=BROWSER)
        assert page.status_code in (404, 409, 503)
        assert path == "/nowhere" or "expected 0600" in words(check_page(page.text))


def test_back_leads_to_our_own_pages_only(client: TestClient) -> None:
    for came, leads in (("//evil.example", "/"), ("/\\evil.example", "/"), ("/compare", "/compare")):
        page = client.get("/runs/none", headers=BROWSER | {"Referer": ORIGIN + came})
        link = parsed(page.text).find(f".//{HTML}main//{HTML}a[@class='button']")
        assert link is not None and link.attrib["href"] == leads


def test_a_file_with_its_digest_is_cached_and_nothing_else_is_served(client: TestClient) -> None:
    script = parsed(client.get("/").text).find(f".//{HTML}script[@type='module']")
    assert script is not None
    source = script.attrib["src"]
    assert "immutable" in client.get(source).headers["cache-control"]
    assert client.get(source.partition("?")[0]).headers["cache-control"] == "no-store"
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/", "/static/css"):
        assert client.get(path).status_code == 404


def test_a_run_that_never_began_is_deleted_by_form(client: TestClient, served: Context, token: str) -> None:
    run = served.ledger.runs.create("mistyped", toy_spec().model_dump(mode="json"), "d", 4).id
    sign_in(client, token)
    assert f'action="/runs/{run}/delete"' in client.get(f"/runs/{run}").text
    refused = client.post("/runs/toy-1/delete", data={"reason": ""}, headers=OURS)
    assert refused.status_code == 409 and "toy-1" in words(check_page(refused.text))
    answer = client.post(f"/runs/{run}/delete", data={"reason": "a typing error"}, headers=OURS)
    page = check_page(answer.text)
    assert answer.url.path == "/" and "The run was deleted" in words(page) and run not in words(page)
    (row,) = served.ledger.deletions.list()
    assert (row.run, row.by, row.why) == (run, "alice", "a typing error")
    assert client.get(f"/runs/{run}").status_code == 404


def test_a_run_that_has_begun_is_archived_and_deleted_by_form(client: TestClient, served: Context, token: str) -> None:
    for iteration in (0, 1, 2):
        seed_checkpoint(served.home, "toy-1", iteration)
    sign_in(client, token)
    page = client.get("/runs/toy-1").text
    assert 'action="/runs/toy-1/archive"' in page and 'name="begun" value="true" required' in page
    driven = client.get("/runs/toy-2").text
    assert "/runs/toy-2/archive" not in driven and "/runs/toy-2/delete" not in driven
    archived = client.post("/runs/toy-1/archive", data={"reason": "old"}, headers=OURS)
    assert archived.url.path == "/runs/toy-1" and "The run was archived" in words(check_page(archived.text))
    (link,) = served.ledger.events.of_kind("toy-1", "archived")
    assert (link.body["by"], link.body["why"], link.body["checkpoints"]) == ("alice", "old", [1])
    assert client.post("/runs/toy-2/archive", data={}, headers=OURS).status_code == 409
    deleted = client.post("/runs/toy-1/delete", data={"reason": "older", "begun": "true"}, headers=OURS)
    assert deleted.url.path == "/" and "The run was deleted" in words(check_page(deleted.text))
    assert [row.run for row in served.ledger.deletions.list()] == ["toy-1"]


def test_a_run_is_forked_and_its_settings_are_changed_by_form(client: TestClient, served: Context, token: str) -> None:
    seed_checkpoint(served.home, "toy-1", 2)
    (served.home.run_folder("toy-1") / INPUTS).mkdir()
    sign_in(client, token)
    page = client.get("/runs/toy-1").text
    assert 'action="/runs/toy-1/fork"' in page and 'action="/runs/toy-1/settings"' in page
    wrong = {"overrides": "trainer.optimizer.learning_rate=0.25\r\n\r\niteratons=9"}
    assert "did you mean &#39;iterations&#39;" in client.post("/runs/toy-1/settings", data=wrong, headers=OURS).text
    changed = client.post("/runs/toy-1/settings", data={"overrides": "iterations=9\r\n"}, headers=OURS)
    assert changed.url.path == "/runs/toy-1/spec" and "a new revision of the spec" in words(check_page(changed.text))
    assert served.ledger.runs.find("toy-1").target_iterations == 9
    given = {"at": "2", "name": "", "overrides": "trainer.optimizer.learning_rate=0.25"}
    made = client.post("/runs/toy-1/fork", data=given, headers=OURS)
    assert made.url.path == "/runs/toy-3" and "The fork was created" in words(check_page(made.text))


@pytest.mark.usefixtures("made_here")
def test_a_run_is_started_from_a_spec_and_all_its_mistakes_are_shown(
    client: TestClient, served: Context, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = yaml_text(toy_spec().model_dump(mode="json"))
    fields = {"spec": text, "reason": "a second seed"}
    assert client.post("/new", data=fields, headers=OURS).status_code == 401
    assert client.post("/api/v1/runs", json=fields).status_code == 401
    sign_in(client, token)
    assert parse_spec(parse_yaml(shown_spec(client.get("/new?run=toy-1").text), "page"), "page") == toy_spec()
    started: list[str] = []
    monkeypatch.setattr("ops.dashboard.starting.start_driver", lambda **given: started.append(given["run"]) or 7)
    wrong = text.replace("iterations: 4", "iterations: -4") + "seeds: 1\n"
    refused = client.post("/new", data=fields | {"spec": wrong}, headers=OURS)
    page = words(check_page(refused.text))
    assert refused.status_code == 422 and "iterations" in page and "seeds" in page and "/tmp" not in page
    answer = client.post("/api/v1/runs", json={"spec": wrong}, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 422 and len(answer.json()["errors"]) >= 2
    assert started == [] and served.ledger.run_list.page().total == 2
    done = client.post("/new", data=fields, headers=OURS)
    assert started == ["toy-3"] and done.url.path == "/runs/toy-3"
    assert served.ledger.runs.revision("toy-3").digest == toy_spec().digest


@pytest.mark.usefixtures("made_here")
def test_the_warnings_of_a_sound_spec_are_in_the_answer(
    client: TestClient, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.dashboard.starting.start_driver", lambda **_: 7)
    tree = toy_spec().model_dump(mode="json")
    tree["data"] |= {"prompts_per_iteration": 5, "logical_shards": 2}
    body = {"spec": yaml_text(tree)}
    answer = client.post("/api/v1/runs", json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 202, answer.text
    assert "pid 7; warning: " in answer.json()["detail"] and "data.logical_shards: 2" in answer.json()["detail"]


def shown_spec(page: str) -> str:
    areas = {each.get("name"): "".join(each.itertext()) for each in check_page(page).iter(f"{HTML}textarea")}
    return areas["spec"]


def test_a_spec_that_cannot_be_started_now_stays_in_the_form(
    client: TestClient, served: Context, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> RunSpec:
        raise InfrastructureError("not enough disk space")

    sign_in(client, token)
    fields = {"spec": "name: typed\r\n" * 2_000 + "#" * 15_000, "reason": "a second seed"}
    with served.checking():
        busy = client.post("/new", data=fields, headers=OURS)
        api = client.post("/api/v1/runs", json=fields, headers={"Authorization": f"Bearer {token}"})
        assert client.get("/api/v1/runs").status_code == 200
    assert api.status_code == 503 and int(api.headers["retry-after"]) > 0
    monkeypatch.setattr("ops.dashboard.starting.made_apart", full)
    refused = client.post("/new", data=fields, headers=OURS)
    assert "disk space" in words(check_page(refused.text))
    for answer in (busy, refused):
        assert answer.status_code == 503 and answer.text.count("name: typed") == 2_000
    assert served.ledger.run_list.page().total == 2


@pytest.mark.usefixtures("made_here")
def test_a_new_run_uses_the_present_contents_of_a_reward_file(
    client: TestClient, served: Context, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def score(prompt, response):\n    return 0.0\n")
    document = toy_spec().model_dump(mode="json")
    part = {"name": "mine", "kind": "function", "file": f"{file}:score", "sha256": "0" * 64}
    document["rewards"]["parts"] = [part]
    run = served.ledger.runs.create("old", document, "d", 4).id
    monkeypatch.setattr("ops.dashboard.starting.start_driver", lambda **_: 7)
    sign_in(client, token)
    text = shown_spec(client.get(f"/new?run={run}").text)
    done = client.post("/new", data={"spec": text, "reason": ""}, headers=OURS)
    assert done.status_code == 200, words(check_page(done.text))
    (copied,) = served.ledger.runs.revision("toy-3").spec["rewards"]["parts"]
    assert copied["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
