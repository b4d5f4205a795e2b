"""Notes and tags over HTTP: by API and by form, in the token holder's name, and as a filter of the list of runs."""

from __future__ import annotations

from fastapi.testclient import TestClient

from db.write.annotations import NOTE_CHARACTERS, NOTED, TAGGED
from ops.web.context import Context
from tests.dashboard.conftest import ORIGIN, Ask
from tests.dashboard.pages import BROWSER, check_page, links, words

FORM = BROWSER | {"Origin": ORIGIN}


def test_a_note_is_written_in_the_callers_name(client: TestClient, alice: dict[str, str], served: Context) -> None:
    path = "/api/v1/runs/toy-1/note"
    assert client.put(path, json={"text": "x"}).status_code == 401
    answer = client.put(path, json={"text": " learns\r\nslowly "}, headers=alice)
    assert answer.status_code == 200 and answer.json()["text"] == "learns\nslowly"
    assert client.get("/api/v1/runs/toy-1").json()["note"]["by"] == "alice"
    (link,) = served.ledger.events.of_kind("toy-1", NOTED)
    assert link.body == {"by": "alice", "text": "learns\nslowly"}
    for wrong in ({"text": "\x00"}, {"text": "x" * 10_001}, {}):
        assert client.put(path, json=wrong, headers=alice).status_code == 422
    longest = "\r\n".join("x" * 5_000) + "y"
    assert client.put(path, json={"text": longest}, headers=alice).json()["text"] == longest.replace("\r\n", "\n")
    assert client.put("/api/v1/runs/none/note", json={"text": "x"}, headers=alice).status_code == 404


def test_tags_are_changed_and_filter_the_list(client: TestClient, ask: Ask, served: Context) -> None:
    assert client.post("/api/v1/runs/toy-1/tags", json={"add": ["x"]}).status_code == 401
    assert ask("toy-1/tags", add=["baseline", "lr-3"]).json() == {"run": "toy-1", "tags": ["baseline", "lr-3"]}
    ask("toy-2/tags", add=["baseline"])
    ask("toy-2/tags", remove=["gone"])
    assert [link.body["by"] for link in served.ledger.events.of_kind("toy-2", TAGGED)] == ["alice"]
    assert ask("toy-1/tags", add=["Not valid"]).status_code == 422

    def listed(query: str) -> list[str]:
        return [run["id"] for run in client.get(f"/api/v1/runs?{query}").json()["runs"]]

    assert listed("tag=baseline") == ["toy-2", "toy-1"]
    assert (listed("tag=baseline&tag=lr-3"), listed("tag=none")) == (["toy-1"], [])
    found = client.get("/api/v1/runs").json()
    assert (found["tags"]["toy-1"], found["all_tags"]) == (["baseline", "lr-3"], {"baseline": 2, "lr-3": 1})
    page = check_page(client.get("/?tag=lr-3", headers=BROWSER).text)
    assert "/?tag=lr-3&tag=baseline" in set(links(page)) and "toy-2" not in words(page)


def test_forms_need_a_session_and_show_the_result(client: TestClient, token: str) -> None:
    assert client.post("/runs/toy-1/note", data={"text": "x"}, headers=FORM).status_code == 401
    client.post("/sign-in", data={"token": token}, headers=FORM)
    answer = client.post("/runs/toy-1/note", data={"text": "</p><script>"}, headers=FORM)
    assert "</p><script>" in words(check_page(answer.text)) and "alice" in answer.text
    assert (
        client.post("/runs/toy-1/note", data={"text": "\U0001f40c" * NOTE_CHARACTERS}, headers=FORM).status_code == 200
    )
    client.post("/runs/toy-1/tags", data={"add": "one, two"}, headers=FORM)
    answer = client.post("/runs/toy-1/tags", data={"remove": "one"}, headers=FORM)
    page = check_page(answer.text)
    assert "/?tag=two" in set(links(page)) and "/?tag=one" not in set(links(page))
    assert client.post("/runs/toy-1/tags", data={"add": "Not!"}, headers=FORM).status_code == 422
