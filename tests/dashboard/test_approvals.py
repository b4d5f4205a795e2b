"""Approvals over HTTP: read by everyone, decided by those who may, by token, session or a notification's link."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from db.core.approval_rules import APPROVED, PENDING, REJECTED, Approval, Deciders
from db.write.approvals import ApprovalDecision, ApprovalRequest
from flows.gates.links import link_key, sign
from ops.approvals import api as approving
from ops.web.context import Context
from tests.dashboard.pages import BROWSER, check_page, words
from tests.dashboard.test_forms import OURS, sign_in

HOUR_MS = 3_600_000


def ask_about(served: Context, *names: str, key: str = "iterations-b0-i2") -> Approval:
    question = ApprovalRequest(
        "toy-1", key, "iterations", "continue after 2?", "toy-1", Deciders(names), evidence={"kl": 0.25}
    )
    return served.ledger.approvals.ask(question)


def link_of(served: Context, asked: Approval, hours: float = 1) -> str:
    return sign(link_key(served.home), asked, served.ledger.approvals.now() + round(hours * HOUR_MS))


def state_of(served: Context, asked: Approval) -> str:
    return served.ledger.approvals.find(asked.id).decision or PENDING


def test_a_token_decides_in_the_name_of_its_holder(client: TestClient, served: Context, alice: dict[str, str]) -> None:
    asked = ask_about(served, "alice")
    listed = client.get("/api/v1/approvals").json()["approvals"]
    assert [(row["id"], row["state"], row["deciders"]) for row in listed] == [(asked.id, PENDING, "alice")]
    body = {"decision": "approve", "why": "it learns"}
    assert client.post(f"/api/v1/approvals/{asked.id}", json=body).status_code == 401
    answer = client.post(f"/api/v1/approvals/{asked.id}", json=body, headers=alice)
    assert answer.status_code == 200 and answer.json()["driver"] is None
    shown = client.get(f"/api/v1/approvals/{asked.id}").json()
    assert (shown["state"], shown["decided_by"], shown["via"]) == (APPROVED, "alice", "api")
    again = client.post(f"/api/v1/approvals/{asked.id}", json=body, headers=alice)
    assert again.status_code == 409 and "was approved by alice" in again.json()["detail"]
    assert client.get("/api/v1/approvals").json()["approvals"] == []
    assert len(client.get("/api/v1/approvals?pending=false&run=toy-1").json()["approvals"]) == 1


def test_refusals(client: TestClient, served: Context, alice: dict[str, str]) -> None:
    asked = ask_about(served, "bob")
    body = {"decision": "reject", "why": "no"}
    refused = client.post(f"/api/v1/approvals/{asked.id}", json=body, headers=alice)
    assert refused.status_code == 403 and "alice may not decide it; expected bob" in refused.json()["detail"]
    assert client.post("/api/v1/approvals/99", json=body, headers=alice).status_code == 404
    for wrong in ({"decision": "maybe", "why": "x"}, {"decision": "approve", "why": " "}, {"decision": "approve"}):
        assert client.post(f"/api/v1/approvals/{asked.id}", json=wrong, headers=alice).status_code == 422
    assert state_of(served, asked) == PENDING


def test_an_approval_resumes_the_run_that_waited_for_it(
    client: TestClient, served: Context, alice: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(approving, "may_go_on", lambda ledger, run: run == "toy-1")
    monkeypatch.setattr(approving, "start_driver", lambda **given: started.append(given["run"]) or 4711)
    body = {"decision": "approve", "why": "go", "resume": True}
    asked = ask_about(served)
    assert client.post(f"/api/v1/approvals/{asked.id}", json=body, headers=alice).json()["driver"] == 4711
    other = ask_about(served, key="later")
    client.post(f"/api/v1/approvals/{other.id}", json=body | {"resume": False}, headers=alice)
    assert started == ["toy-1"]


def test_the_pages_show_and_decide(client: TestClient, served: Context, token: str) -> None:
    asked = ask_about(served)
    page = client.get("/approvals", headers=BROWSER)
    assert "continue after 2?" in words(check_page(page.text))
    one = f"/approvals/{asked.id}"
    assert "Sign in to decide" in client.get(one).text
    form = {"decision": "reject", "why": "no progress"}
    assert client.post(one, data=form, headers=OURS).status_code == 401
    sign_in(client, token)
    assert 'name="decision"' in client.get(one).text
    assert client.post(one, data=form, headers={"Origin": "http://evil.example"}).status_code == 403
    shown = words(check_page(client.post(one, data=form, headers=OURS).text))
    assert "rejected by alice" in shown and "no progress" in shown
    assert served.ledger.approvals.find(asked.id).via == "dashboard"
    assert "rejected" in words(check_page(client.get("/approvals", headers=BROWSER).text))


def test_a_link_asks_for_confirmation_and_decides_once(client: TestClient, served: Context) -> None:
    asked = ask_about(served, "bob")
    signed = link_of(served, asked)
    where = f"/approvals/{asked.id}/link"
    page = client.get(where, params={"token": signed}, headers=BROWSER)
    assert signed in page.text and 'action="/approvals/1/link"' in page.text
    check_page(page.text)
    assert state_of(served, asked) == PENDING, "opening the page decides nothing"
    form = {"token": signed, "name": "Bob B.", "decision": "approve", "why": "looks well"}
    assert client.post(where, data=form, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post(where, data=form | {"name": ""}, headers=OURS).status_code == 422
    assert state_of(served, asked) == PENDING
    client.post(where, data=form, headers=OURS)
    done = served.ledger.approvals.find(asked.id)
    assert (done.decision, done.decided_by, done.via) == (APPROVED, "Bob B. (by link)", "link")
    assert client.post(where, data=form | {"decision": "reject"}, headers=OURS).status_code == 409


@pytest.mark.parametrize("kind", ["expired", "forged", "of another question", "missing"])
def test_a_link_that_is_not_valid_decides_nothing(client: TestClient, served: Context, kind: str) -> None:
    other = ask_about(served, key="other")
    asked = ask_about(served)
    good = link_of(served, asked)
    given = {
        "expired": link_of(served, asked, hours=0),
        "forged": good[:-1] + ("0" if good[-1] != "0" else "1"),
        "of another question": link_of(served, other),
        "missing": "",
    }[kind]
    where = f"/approvals/{asked.id}/link"
    assert client.get(where, params={"token": given}).status_code == 403
    form = {"token": given, "name": "Eve", "decision": "approve", "why": "x"}
    assert client.post(where, data=form, headers=OURS).status_code in (403, 422)
    assert state_of(served, asked) == PENDING


def test_a_deadline_shows_without_anyone_recording_it(client: TestClient, served: Context) -> None:
    served.ledger.approvals.ask(ApprovalRequest("p-1", "k", "gate", "on?", seconds=0, default_decision=REJECTED))
    assert client.get("/api/v1/approvals/1").json()["state"] == REJECTED
    assert served.ledger.approvals.find(1).decision is None, "reading changes nothing"
    with pytest.raises(Exception, match="its deadline"):
        served.ledger.approvals.decide(1, ApprovalDecision(APPROVED, "ann", "late", "cli"))
