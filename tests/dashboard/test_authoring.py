"""Nobody comes in by a spec: what it names over HTTP is imported, called, read, fetched and quoted only as its author may.

Every way of naming something is tried in every role, in a spec of one's own and as a change to one that exists. What the spec
names leaves a trace where it is imported, called, read or fetched.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from db.write.home_events import CREATION_REFUSED
from ops.people.roles import Permission, Person, Role
from ops.preflight.apart import RunRequest, made_apart
from ops.preflight.asked import answer_to
from ops.web.context import Context
from tests.dashboard.test_permissions import Names, routes
from tests.ops.cli.test_branches import seed_checkpoint
from tests.ops.seeding import toy_spec
from tests.waiting import wait_until
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.inputs.manifest import INPUTS
from yatt_core.spec.reading.documents import parse_yaml, yaml_text

SECRET = "a line that nobody must be shown"


OPENED: list[str] | None = None
"""The files that this process opens, while a test wants to know."""


def note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and OPENED is not None:
        OPENED.append(str(arguments[0]))


sys.addaudithook(note_opened)


class Traps:
    """Code that notes who runs it, a file with a secret, and a server that notes who asks it."""

    def __init__(self, folder: Path, url: str, asked: list[str]) -> None:
        self.folder = folder
        self.url = url
        self.asked = asked
        self.trace = folder / "trace"
        self.code = folder / "trap.py"
        self.code.write_text(
            f"import os\nwith open({str(self.trace)!r}, 'a') as trace:\n    trace.write(str(os.getpid()) + '\\n')\n"
            "class Observer:\n    def on_end(self, end): pass\n"
            "def score(prompt, response, **options):\n    return 0.0\n"
            "def rows(split, **options):\n    return [{'prompt': '1', 'answer': '1'}]\n"
        )
        self.text = folder / "secret.jsonl"
        self.text.write_text(f"{SECRET}\n")

    @property
    def ran_in(self) -> set[int]:
        """The processes that have run the code."""
        return set(map(int, self.trace.read_text().split())) if self.trace.exists() else set()

    def ways(self) -> dict[str, dict[str, Any]]:
        """Returns values of the spec by key, by what they name."""
        file = f"{self.code}:"
        part = {"name": "mine", "kind": "function"}
        judge = {"name": "judge", "kind": "endpoint", "url": self.url, "model": "m", "template": "{prompt} {response}"}
        judge |= {"credential": {"env": "YATT_TRAP"}, "seeded": True}
        row = {"prompt_field": "prompt", "answer_field": "answer"}
        return {
            "a callback in a file": {"callbacks": [{"file": f"{file}Observer"}]},
            "a callback of a module": {"callbacks": [{"function": "trap:Observer"}]},
            "a reward in a file": {"rewards.parts": [part | {"file": f"{file}score"}]},
            "a reward of a module": {"rewards.parts": [part | {"function": "trap:score"}]},
            "rows of a function": {"data.sources": [{"kind": "function", "file": f"{file}rows"} | row]},
            "a loss of a module": {"algorithm.loss": {"kind": "custom", "function": "trap:score"}},
            "a tool": {"rollout.tools": {"functions": [{"name": "t", "file": f"{file}score"}]}},
            "a task of reasoning-gym": {"data.sources": [{"kind": "reasoning_gym", "task": "number_sorting"}]},
            "a file of a task": {
                "data.sources": [
                    {"kind": "reasoning_gym", "task": "spell_backward", "options": {"data_file": str(self.text)}}
                ]
            },
            "other contents of a file": {"rewards.parts": [part | {"file": f"{file}score", "sha256": "0" * 64}]},
            "a data file": {"data.sources": [{"kind": "jsonl", "path": str(self.text)} | row]},
            "a model": {"model": {"kind": "folder", "path": str(self.folder)}},
            "a judge": {"rewards.parts": [*toy_spec().model_dump(mode="json")["rewards"]["parts"], judge]},
            "an object store": {"storage.url": "s3://training/yatt"},
            "a secret": {"guards.notify": {"addresses": {"file": str(self.text)}}},
            "a folder to write to": {
                "tracking.trackers": ["tensorboard"],
                "tracking.tensorboard_folder": str(self.folder),
            },
        }


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traps]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            self.send_error(500)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    folder = tmp_path / "outside"
    folder.mkdir()
    monkeypatch.setenv("YATT_TRAP", SECRET)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Traps(folder, f"http://127.0.0.1:{server.server_address[1]}/v1", asked)
        server.shutdown()


@pytest.fixture(autouse=True)
def no_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.dashboard.starting.start_driver", lambda **_: 7)


def with_values(values: dict[str, Any]) -> str:
    """Returns a spec's text with values by dotted key."""
    tree = toy_spec().model_dump(mode="json")
    for key, value in values.items():
        *above, last = key.split(".")
        section = tree
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
    return yaml_text(tree)


def overrides(values: dict[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def bearer(served: Context, role: Role, is_author: bool = False) -> dict[str, str]:
    name = f"{role}-{'author' if is_author else 'plain'}"
    served.tokens.users.add(name, role)
    served.tokens.users.set_author(name, is_author)
    return {"Authorization": f"Bearer {served.tokens.create(name, role, user=name)}"}


@pytest.fixture
def toy_file(served: Context) -> str:
    served.home.specs.mkdir()
    (served.home.specs / "toy.yaml").write_text(yaml_text(toy_spec().model_dump(mode="json")))
    return "toy.yaml"


def bodies(values: dict[str, Any], toy_file: str) -> list[dict[str, Any]]:
    """Returns the requests that name something."""
    changes = overrides(values)
    return [
        {"spec": with_values(values)},
        {"run": "toy-1", "overrides": changes},
        {"file": toy_file, "overrides": changes},
    ]


def extending(served: Context, traps: Traps) -> list[dict[str, Any]]:
    """Returns the requests that extend a file outside of the home's specs."""
    files = (traps.text, Path("/etc/hostname"), Path("/nowhere/at/all"), served.home.folder / "users.json")
    return [{"spec": f"extends: {file}\n"} for file in files]


def test_nothing_that_an_operator_names_is_looked_at(
    served: Context, traps: Traps, toy_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [body for values in traps.ways().values() for body in bodies(values, toy_file)]
    opened: list[str] = []
    monkeypatch.setattr(f"{__name__}.OPENED", opened)
    for body in [*named, *extending(served, traps)]:
        asked = RunRequest(
            body.get("spec"),
            body.get("run"),
            body.get("file"),
            tuple(body.get("overrides", ())),
            refusal="this needs the permission to author",
            by="bob",
        )
        answer = answer_to(served.home, asked, print)
        assert "this needs the permission to author" in answer["error"], (body, answer)
        assert SECRET not in answer["error"] and "does not exist" not in answer["error"]
    assert traps.ran_in == set() and traps.asked == []
    assert any(path.endswith(toy_file) for path in opened) and not any(str(traps.folder) in path for path in opened)


HTTP_WAYS = ["a callback of a module", pytest.param("", marks=pytest.mark.verify)]
"""One way of naming code; and all ways, which take a minute."""


@pytest.mark.parametrize("way", HTTP_WAYS)
@pytest.mark.parametrize(
    "role",
    [
        pytest.param(
            role, marks=pytest.mark.verify if role is Role.APPROVER else ()
        )  # who may do more than an operator
        for role in Role
        if Permission.AUTHOR not in Person("x", role).permissions
    ],
)
def test_who_may_not_author_names_nothing_over_http(
    request: pytest.FixtureRequest,
    client: TestClient,
    served: Context,
    traps: Traps,
    toy_file: str,
    role: Role,
    way: str,
) -> None:
    if way:  # where it would run, it would leave a trace all the same
        request.getfixturevalue("made_here")
    headers = bearer(served, role)
    ways = traps.ways()
    before = served.ledger.run_list.page().total
    sent = [body for values in ([ways[way]] if way else ways.values()) for body in bodies(values, toy_file)]
    sent += [] if way else extending(served, traps)
    for body in sent:
        answer = client.post("/api/v1/runs", json=body, headers=headers)
        assert answer.status_code == (403 if role is Role.VIEWER else 422), (body, answer.text)
        assert SECRET not in answer.text and "Traceback" not in answer.text
    assert traps.ran_in == set() and traps.asked == []
    assert served.ledger.run_list.page().total == before
    refused = [link.body for link in served.ledger.home_events.links() if link.kind == CREATION_REFUSED]
    assert len(refused) == (0 if role is Role.VIEWER else len(sent))
    assert {body["by"] for body in refused} <= {f"{role}-plain"} and served.ledger.home_events.verify() is None


def test_an_author_names_what_is_checked_in_a_process_of_its_own(
    client: TestClient, served: Context, traps: Traps
) -> None:
    headers = bearer(served, Role.OPERATOR, is_author=True)
    named = traps.ways()["a callback in a file"]
    answer = client.post("/api/v1/runs", json={"spec": with_values(named)}, headers=headers)
    assert answer.status_code == 202, answer.text
    assert traps.ran_in and os.getpid() not in traps.ran_in
    run = answer.json()["run"]["id"]
    traps.code.unlink()
    again = client.post(
        "/api/v1/runs", json={"run": run, "overrides": ["seed=7"]}, headers=bearer(served, Role.APPROVER)
    )
    assert again.status_code == 202, "the code is that of the run, whose copy is used"
    assert served.ledger.runs.revision(again.json()["run"]["id"]).spec["seed"] == 7


@pytest.mark.usefixtures("made_here")
def test_contents_of_files_outside_of_the_home_are_not_quoted(
    client: TestClient, served: Context, traps: Traps
) -> None:
    headers = bearer(served, Role.ADMIN)
    inside = served.home.folder / "rows.jsonl"
    inside.write_text("a line of the home\n")
    for path, is_quoted in ((traps.text, False), (inside, True)):
        source = {"kind": "jsonl", "path": str(path), "prompt_field": "prompt", "answer_field": "answer"}
        answer = client.post("/api/v1/runs", json={"spec": with_values({"data.sources": [source]})}, headers=headers)
        assert answer.status_code == 422
        assert SECRET not in answer.text
        assert ("in the log of the server" in answer.text) is not is_quoted
    traps.text.write_text(f"iterations: [{SECRET}\n")
    inside.write_text("iterations: [a line of the home\n")
    for path, is_quoted in ((traps.text, False), (inside, True)):
        answer = client.post("/api/v1/runs", json={"spec": f"extends: {path}\n"}, headers=headers)
        assert answer.status_code == 422 and SECRET not in answer.text
        assert ("in the log of the server" in answer.text) is not is_quoted


@pytest.mark.usefixtures("made_here")
def test_an_operator_starts_what_exists_with_plain_changes(client: TestClient, served: Context, toy_file: str) -> None:
    headers = bearer(served, Role.OPERATOR)
    (served.home.specs / "notes.txt").write_text("no spec")
    assert client.get("/api/v1/specs", headers=headers).json() == ["toy.yaml"]
    for body in ({"file": toy_file, "overrides": ["seed=5"]}, {"run": "toy-1", "overrides": ["seed=5"]}):
        answer = client.post("/api/v1/runs", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        made = answer.json()["run"]["id"]
        assert served.ledger.runs.revision(made).spec["seed"] == 5
        (first,) = served.ledger.events.of_kind(made, "spec_revision")
        assert first.body["by"] == "operator-plain"
    for wrong in ({}, {"run": "toy-1", "file": "toy.yaml"}, {"file": "../toy.yaml"}, {"file": "none.yaml"}):
        assert client.post("/api/v1/runs", json=wrong, headers=headers).status_code == 422
    assert client.post("/api/v1/runs", json={"run": "none-1"}, headers=headers).status_code == 404


@pytest.mark.usefixtures("made_here")
def test_a_run_is_forked_and_its_settings_are_changed_over_http(client: TestClient, served: Context) -> None:
    headers = bearer(served, Role.OPERATOR)
    (served.home.run_folder("toy-1") / INPUTS).mkdir()
    for iteration in (0, 2):
        seed_checkpoint(served.home, "toy-1", iteration)
    rate = "trainer.optimizer.learning_rate=0.25"
    answer = client.post(
        "/api/v1/runs/toy-1/fork", json={"at": 2, "overrides": [rate], "name": "heir"}, headers=headers
    )
    assert answer.status_code == 201, answer.text
    assert (answer.json()["run"]["id"], answer.json()["by"]) == ("heir-1", "operator-plain")
    assert served.ledger.runs.revision("heir-1").spec["trainer"]["optimizer"]["learning_rate"] == 0.25
    (link,) = served.ledger.events.of_kind("heir-1", "fork")
    assert link.body["by"] == "operator-plain"
    answer = client.post("/api/v1/runs/toy-1/settings", json={"overrides": [rate]}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert served.ledger.runs.revision("toy-1").revision == 2 and "revision 2" in answer.json()["detail"]
    named = {"overrides": ["rewards.parts.0.file=/tmp/own.py:score", "rewards.parts.0.function=null"]}
    for way, body in (("settings", named), ("fork", {"at": 2, **named})):
        answer = client.post(f"/api/v1/runs/toy-1/{way}", json=body, headers=headers)
        assert answer.status_code == 422 and "permission to author" in answer.text, answer.text
    refused = client.post("/api/v1/runs/toy-1/settings", json={"overrides": ["seed=9"]}, headers=headers)
    assert refused.status_code == 422 and "seed cannot change" in refused.text
    assert client.post("/api/v1/runs/toy-2/settings", json={"overrides": [rate]}, headers=headers).status_code == 409
    assert client.post("/api/v1/runs/toy-1/settings", json={"overrides": []}, headers=headers).status_code == 422
    assert len(served.ledger.home_events.links()) >= 3, "refusals are in the audit chain of the home"


def test_no_page_looks_at_what_the_spec_of_a_run_names(client: TestClient, served: Context, traps: Traps) -> None:
    ways = ("a callback of a module", "a loss of a module", "rows of a function", "a judge")
    values = {key: value for way in ways for key, value in traps.ways()[way].items()}
    document = parse_yaml(with_values(values), "the spec")
    run = served.ledger.runs.create("trapped", document, "d", 4).id
    headers = bearer(served, Role.ADMIN)
    app = client.app
    assert isinstance(app, FastAPI)
    asked = 0
    for route in routes(app):
        if "GET" in (route.methods or ()) and "run_id" in route.path and not route.path.endswith("/live"):
            path = route.path.format_map(
                Names({"run_id": run} | dict.fromkeys(("iteration", "before", "after", "number"), "1"))
            )
            assert client.get(path, headers=headers).status_code != 500, path
            asked += 1
    assert asked > 20
    assert traps.ran_in == set() and traps.asked == []


@pytest.mark.parametrize("length", [300, 5_000])
def test_a_name_that_no_file_can_have_is_a_mistake(served: Context, length: int) -> None:
    long = "n" * length
    row = {"prompt_field": "prompt", "answer_field": "answer"}
    texts = [
        *(
            with_values({"data.sources": [{"kind": kind, "path": f"/{long}"} | row]})
            for kind in ("jsonl", "csv", "parquet")
        ),
        with_values({"data.sources": [{"kind": "huggingface", "path": f"/{long}"} | row]}),
        with_values({"data.sources": [{"kind": "function", "file": f"/{long}.py:rows"} | row]}),
        with_values({"callbacks": [{"file": f"/{long}.py:Observer"}]}),
        with_values({"callbacks": [{"function": f"{long}:Observer"}]}),
        with_values({"name": long}),
        f"extends: /{long}\n",
    ]
    for text in texts:
        answer = answer_to(served.home, RunRequest(text, None, None, (), refusal=None, by="bob"), print)
        assert answer["failure_class"] == "configuration", (text, answer)


@pytest.mark.usefixtures("made_here")
def test_an_operator_cannot_have_other_contents_of_a_file_executed(
    client: TestClient, served: Context, traps: Traps
) -> None:
    """A run has its own copy of code; without the digest, the file would be read anew."""
    part = {"name": "mine", "kind": "function", "file": f"{traps.code}:score"}
    text = with_values({"rewards.parts": [part]})
    run = client.post("/api/v1/runs", json={"spec": text}, headers=bearer(served, Role.ADMIN)).json()["run"]["id"]
    traps.code.write_text("raise SystemExit(traps)\n")
    plain = bearer(served, Role.OPERATOR)
    for change in ("rewards.parts.0.sha256=null", f"rewards.parts={json.dumps([part])}"):
        answer = client.post("/api/v1/runs", json={"run": run, "overrides": [change]}, headers=plain)
        assert answer.status_code == 422 and "sha256: names code" in answer.text, answer.text
    again = client.post("/api/v1/runs", json={"run": run, "overrides": ["seed=3"]}, headers=plain)
    assert again.status_code == 202, again.text


@pytest.mark.usefixtures("made_here")
def test_values_of_changes_are_neither_answered_nor_recorded(client: TestClient, served: Context) -> None:
    changes = ["tracking.wandb_credential=my-own-key", "no sign of equality"]
    answer = client.post(
        "/api/v1/runs", json={"run": "toy-1", "overrides": changes}, headers=bearer(served, Role.ADMIN)
    )
    assert answer.status_code == 422 and "my-own-key" not in answer.text
    (link,) = served.ledger.home_events.links()
    assert "my-own-key" not in json.dumps(link.body) and link.body["overrides"] == ["tracking.wandb_credential"]


ENDS = {
    "too late": ("time.sleep(600)", ConfigurationError, "longer than"),
    "without a word": ("os._exit(3)", InfrastructureError, "exit code 3"),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_process_of_a_check_ends_with_all_that_it_has_started(served: Context, traps: Traps, end: str) -> None:
    doing, kind, said = ENDS[end]
    pid = traps.folder / "pid"
    traps.code.write_text(
        "import os, subprocess, time\nclass Observer:\n    def on_end(self, end): pass\n    def __init__(self):\n"
        "        child = subprocess.Popen(['sleep', '600'])\n"
        f"        open({str(pid)!r}, 'w').write(str(child.pid))\n        {doing}\n"
    )
    text = with_values({"callbacks": [{"file": f"{traps.code}:Observer"}]})
    before = served.ledger.run_list.page().total
    # A time that is over before the process has come to the callback shows nothing, so that a busy machine gets more.
    for seconds in [4.0, 16.0, 64.0] if end == "too late" else [60.0]:
        with pytest.raises(kind, match=said):
            made_apart(served.home, RunRequest(text, None, None, (), refusal=None, by="ann"), seconds=seconds)
        if pid.exists():
            break
    wait_until(lambda: not psutil.pid_exists(int(pid.read_text())) or is_zombie(int(pid.read_text())))
    assert served.ledger.run_list.page().total == before


def is_zombie(pid: int) -> bool:
    """Returns whether a process has ended and is only still listed."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
