"""Promotions in MLflow's registry: a version per checkpoint and the ledger's aliases, wherever the deliverer dies."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.aliases import ALIASES, PROMOTION, CheckpointKey
from flows.branching.branches import open_branch, revise
from flows.delivery.outbox import deliver_pending
from flows.delivery.registry import pruned_entries, version_id
from flows.files.retention import needed_checkpoints
from flows.run.creation import current_spec
from flows.run.home import Home
from flows.run.lease import operator_lease
from ops.integrations.mlflow_registry import EXTERNAL_TAG, alias_tag
from ops.integrations.mlflow_tracker import MlflowTracker
from ops.integrations.promotion import deliver, promote
from ops.people.roles import Person, Role
from ops.terminal.lookup import opened_checkpoint
from ops.terminal.options import Alias
from tests.ops.audited import weights
from tests.ops.conftest import Yatt
from tests.ops.integrations.test_mlflow_tracker import body_of, row
from yatt_core.errors import ConfigurationError

RUN = "toy-1"


@pytest.fixture
def registered(sound_run: Path, home: Home) -> Home:
    """Creates a run with checkpoints of iterations 0 and 2 that are registered in MLflow."""
    shutil.copytree(sound_run, home.folder)
    return home


def client_of(home: Home) -> Any:
    with MlflowTracker(home.tracking_uri, home.artifacts).client() as client:
        return client


def versions(home: Home) -> dict[int, Any]:
    """Returns the versions of the run's registered model by iteration; fails if an iteration has two."""
    found = client_of(home).search_model_versions("name = 'toy'")
    by_iteration = {int(version.tags["yatt.iteration"]): version for version in found}
    assert len(by_iteration) == len(found), "a checkpoint was registered twice"
    return by_iteration


def aliases(home: Home) -> dict[str, int]:
    """Returns the iterations that MLflow's aliases point to, by alias."""
    client = client_of(home)
    by_version = {version.version: i for i, version in versions(home).items()}
    found = client.get_registered_model("toy").aliases
    return {alias: by_version[int(version)] for alias, version in found.items()}


# -- deliveries to MLflow ---------------------------------------------------------------------------------------------


def test_each_checkpoint_is_an_external_model_and_a_version_of_the_runs_model(registered: Home) -> None:
    found = versions(registered)
    assert sorted(found) == [0, 2]
    with Ledger.open(registered.ledger) as ledger:
        checkpoint = next(s for s in ledger.records.checkpoints(RUN) if s.iteration == 2)
        mlflow_run = ledger.runs.find(RUN).mlflow_run_id
    tags = found[2].tags
    assert tags["yatt.weights_digest"] == weights(2) == checkpoint.weights_digest
    assert (tags["yatt.run"], tags["yatt.branch"], tags["yatt.iteration"], tags["yatt.term"]) == (RUN, "0", "2", "1")
    assert (tags["yatt.folder"], tags["yatt.manifest_sha256"]) == (checkpoint.folder, checkpoint.manifest_sha256)
    assert (tags["yatt.state"], found[2].status, found[2].run_id) == ("kept", "READY", mlflow_run)
    model = client_of(registered).get_logged_model(tags["yatt.model_id"])
    assert (model.status, model.source_run_id, model.tags[EXTERNAL_TAG]) == ("READY", mlflow_run, "true")
    assert not [path for path in registered.artifacts.rglob("*") if path.is_file()], "the weights stay where they are"


def test_a_checkpoint_has_the_metrics_of_its_iteration_whichever_arrives_first(registered: Home) -> None:
    """Iteration 2 was committed before its checkpoint was recorded; the metrics of 0 are sent again after it."""
    client = client_of(registered)
    found = versions(registered)
    assert found[2].tags["yatt.reward"] == "0.2"
    with Ledger.open(registered.ledger) as ledger:
        mlflow_run = str(ledger.runs.find(RUN).mlflow_run_id)
    late = {"branch": 0, "iteration": 0, "metrics": {"reward/mean": 0.0, "late": 1.0}, "checkpoint_terms": [1]}
    MlflowTracker(registered.tracking_uri, registered.artifacts).deliver([row("metrics", late, mlflow_run)])
    for iteration, expected in ((2, {"reward/mean": 0.2}), (0, {"reward/mean": 0.0, "late": 1.0})):
        model = client.get_logged_model(found[iteration].tags["yatt.model_id"])
        measured = {metric.key: (metric.step, metric.value) for metric in model.metrics}
        assert measured.items() >= {key: (iteration, value) for key, value in expected.items()}.items()
    outputs = client.get_run(mlflow_run).outputs.model_outputs
    assert sorted(output.step for output in outputs) == [0, 2]


def test_the_champion_of_another_run_becomes_the_rollback_version(registered: Home) -> None:
    """Runs of one spec share the model; the newest promotion counts, in whatever order the promotions arrive."""
    promote(registered, RUN, "champion", 2, by="ann", why="why")
    assert deliver(registered, RUN) is None
    with Ledger.open(registered.ledger) as ledger:
        mlflow_run = ledger.runs.find(RUN).mlflow_run_id
        at = ledger.aliases.history(RUN)[-1].at
    said = {"alias": "champion", "by": "bob", "why": "why", "number": 1}
    body = {**body_of("of toy-2", 5, "kept"), "version_id": "toy-2/b0/checkpoint-i5-t1", **said}
    tracker = MlflowTracker(registered.tracking_uri, registered.artifacts)
    for time, key in ((at - 1, "too old"), (at + 1, "newer"), (at + 1, "again")):
        tracker.deliver([replace(row("alias", {**body, "at": time}, mlflow_run, key), run="toy-2")])
        model = client_of(registered).get_registered_model("toy")
        held = {alias: client_of(registered).get_model_version("toy", v).tags for alias, v in model.aliases.items()}
        runs = {alias: tags["yatt.run"] for alias, tags in held.items()}
        assert runs == ({"champion": RUN} if key == "too old" else {"champion": "toy-2", "rollback": RUN})


def test_a_promotion_is_an_event_then_an_alias_with_who_when_and_why(registered: Home, yatt: Yatt) -> None:
    first = yatt(
        "promote", RUN, "--iteration", "0", "--to", "champion", "--why", "the first", "--by", "ann", "-o", "json"
    )
    assert first.code == 0, first.err
    assert first.document["model"] == "models:/toy@champion" and first.document["waits"] is None
    answer = yatt("promote", "latest", "--to", "champion", "--why", "won 7 of 10 „Tests“", "--by", "bob", "-o", "json")
    moves = [(move["alias"], move["iteration"], move["by"]) for move in answer.document["moves"]]
    assert moves == [("rollback", 0, "bob"), ("champion", 2, "bob")]
    assert aliases(registered) == {"champion": 2, "rollback": 0}
    client = client_of(registered)
    assert client.get_model_version_by_alias("toy", "champion").tags["yatt.weights_digest"] == weights(2)
    with Ledger.open(registered.ledger) as ledger:
        link = ledger.events.of_kind(RUN, PROMOTION)[-1]
        assert (link.body["by"], link.body["why"], link.body["iteration"]) == ("bob", "won 7 of 10 „Tests“", 2)
        assert ledger.outbox.counts(RUN)[0] == 0
    for tags in (client.get_registered_model("toy").tags, versions(registered)[2].tags):
        said = json.loads(tags[alias_tag("champion")])
        assert (said["by"], said["why"], said["at"]) == ("bob", "won 7 of 10 „Tests“", link.at)
    again = yatt("promote", RUN, "--to", "champion", "--why", "again")
    assert again.out == "toy-1: champion is already iteration 2; nothing changed\n"
    assert yatt("audit", "verify", RUN).code == 0


def test_aliases_are_listed_with_their_history(registered: Home, yatt: Yatt) -> None:
    assert "has no aliases yet" in yatt("aliases", RUN).out
    assert yatt("aliases", RUN, "-o", "json").document["history"] == []
    promote(registered, RUN, "champion", 0, by="ann", why="the first")
    promote(registered, RUN, "champion", 2, by="bob", why="better")
    document = yatt("aliases", "latest", "-o", "json").document
    assert {alias: move["iteration"] for alias, move in document["aliases"].items()} == {"champion": 2, "rollback": 0}
    assert [(move["number"], move["alias"], move["by"], move["why"]) for move in document["history"]] == [
        (1, "champion", "ann", "the first"),
        (2, "rollback", "bob", "better"),
        (3, "champion", "bob", "better"),
    ]
    text = yatt("aliases", RUN).out
    assert "bob" in text and "newest first" in text and "better" in text
    assert "champion 2, rollback 0" in yatt("show", RUN).out


def test_the_command_knows_the_aliases_of_the_ledger() -> None:
    assert tuple(alias.value for alias in Alias) == ALIASES


# -- refusals ---------------------------------------------------------------------------------------------------------


def damage(home: Home) -> None:
    (home.run_folder(RUN) / "checkpoints/b000-i000002.t0001/weights.safetensors").write_bytes(b"damaged")


def prune(home: Home) -> None:
    with Ledger.open(home.ledger) as ledger, operator_lease(ledger, RUN, "a test") as lease:
        fence = lease.fence
        checkpoint = next(s for s in ledger.records.checkpoints(RUN) if s.iteration == 2)
        entries = pruned_entries(current_spec(ledger, RUN), checkpoint)
        assert ledger.records.checkpoint_pruned(fence, checkpoint, entries)


def run_ahead(home: Home) -> None:
    """Publishes the checkpoint of an iteration that is not committed yet."""
    with Ledger.open(home.ledger) as ledger, ledger._database.write() as connection:
        connection.exec_driver_sql("UPDATE iteration SET iteration = 9 WHERE iteration = 2")


REFUSED: dict[str, tuple[Callable[[Home], None], list[str], int, str]] = {
    "damaged": (damage, ["--iteration", "2"], 1, "weights.safetensors: has 7 bytes"),
    "pruned": (prune, ["--iteration", "2"], 2, "checkpoint of iteration 2 is pruned"),
    "unknown": (lambda home: None, ["--iteration", "1"], 2, "iterations: 0, 2"),
    "not committed": (run_ahead, ["--iteration", "2"], 2, "its iteration is not committed"),
    "no reason": (lambda home: None, ["--why", " "], 2, "why: expected 1 to 2000 characters"),
    "long reason": (lambda home: None, ["--why", "x" * 2001], 2, "not 2001 characters"),
    "no name": (lambda home: None, ["--by", " "], 2, "by: expected 1 to 200 characters"),
    "hostile name": (lambda home: None, ["--by", "ann\x1b[2J"], 2, "'ann\\x1b[2J'"),
    "turned reason": (lambda home: None, ["--why", "fine\u202e"], 2, "'fine\\u202e'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_impossible_promotion_is_refused_and_leaves_nothing(registered: Home, yatt: Yatt, case: str) -> None:
    prepare, words, code, says = REFUSED[case]
    prepare(registered)
    answer = yatt("promote", RUN, "--to", "champion", "--why", "because", "--by", "ann", *words)
    assert (answer.code, answer.out) == (code, "") and says in answer.err and "Traceback" not in answer.err
    with Ledger.open(registered.ledger) as ledger:
        assert ledger.aliases.history(RUN) == [] and ledger.events.of_kind(RUN, PROMOTION) == []


def test_the_newest_committed_checkpoint_is_the_default(registered: Home) -> None:
    run_ahead(registered)
    assert promote(registered, RUN, "candidate", by="ann", why="why").iteration == 0


# -- effects of an alias ----------------------------------------------------------------------------------------------


def test_an_alias_keeps_its_checkpoint_and_leads_to_it(registered: Home) -> None:
    with Ledger.open(registered.ledger) as ledger, operator_lease(ledger, RUN, "a test") as lease:
        fence = lease.fence
        newest = {"checkpoints/b000-i000000.t0001"}
        open_branch(ledger, fence, current_spec(ledger, RUN), 0, "a rollback")
        assert needed_checkpoints(ledger, RUN, keep=1) == newest
    with pytest.raises(ConfigurationError, match="checkpoint of iteration 2 "):
        promote(registered, RUN, "champion", 2, by="ann", why="it is superseded")
    with Ledger.open(registered.ledger) as ledger:
        ledger.aliases.promote(RUN, "champion", CheckpointKey(0, 2, 1), "ann", "before the rollback")
        ledger.aliases.promote(RUN, "champion", CheckpointKey(0, 0, 1), "ann", "after it")
        assert needed_checkpoints(ledger, RUN, keep=1) == newest | {"checkpoints/b000-i000002.t0001"}
    assert opened_checkpoint(registered, RUN, None, "rollback")[2].iteration == 2
    assert opened_checkpoint(registered, RUN, None, "champion")[2].iteration == 0
    with pytest.raises(ConfigurationError, match="candidate; aliases: champion, rollback"):
        opened_checkpoint(registered, RUN, None, "candidate")
    with pytest.raises(ConfigurationError, match=r"^--iteration and --alias: "):
        opened_checkpoint(registered, RUN, 2, "champion")


def test_a_pruned_checkpoint_stays_marked_as_pruned(registered: Home) -> None:
    prune(registered)
    assert versions(registered)[2].tags["yatt.state"] == "kept"
    assert deliver(registered, RUN) is None
    assert {i: version.tags["yatt.state"] for i, version in versions(registered).items()} == {0: "kept", 2: "pruned"}
    with Ledger.open(registered.ledger) as ledger:
        mlflow_run = ledger.runs.find(RUN).mlflow_run_id
        checkpoint = next(s for s in ledger.records.own_checkpoints(RUN) if s.iteration == 2)
    late = {
        **body_of("m2", 2, "kept"),
        "version_id": version_id(checkpoint),
        "manifest_sha256": checkpoint.manifest_sha256,
    }
    MlflowTracker(registered.tracking_uri, registered.artifacts).deliver([row("checkpoint", late, mlflow_run)])
    assert versions(registered)[2].tags["yatt.state"] == "pruned"


# -- outages and killed deliverers ------------------------------------------------------------------------------------


def test_a_promotion_waits_for_mlflow_to_come_back(
    registered: Home, yatt: Yatt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free.getsockname()[1]}")
    answer = yatt("promote", RUN, "--to", "champion", "--why", "why", "--by", "ann", "-o", "json")
    assert answer.code == 0 and "later: MLflow at http://127.0.0.1" in answer.err
    assert answer.document["waits"]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert aliases(registered) == {}
    with Ledger.open(registered.ledger) as ledger:
        assert ledger.aliases.current(RUN)["champion"].iteration == 2
    assert deliver(registered, RUN) is None
    assert aliases(registered) == {"champion": 2}


def test_the_driver_of_a_run_delivers_its_promotions(registered: Home, yatt: Yatt) -> None:
    with Ledger.open(registered.ledger) as ledger:
        fence = ledger.leases.acquire(RUN, this_process("the driver"), 600)
        answer = yatt("promote", RUN, "--to", "candidate", "--why", "why", "--by", "ann")
        assert answer.code == 0 and "holds the run" in answer.err
        assert answer.out == "toy-1: candidate is now iteration 2 (branch 0)\n"
        while deliver_pending(ledger, fence, MlflowTracker(registered.tracking_uri, registered.artifacts)):
            pass
    assert aliases(registered) == {"candidate": 2}


def test_a_promotion_of_a_leased_run_is_delivered_by_the_lease_holder(
    registered: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder of the lease has delivered everything, and still holds it during another promotion."""
    promote(registered, RUN, "champion", 0, by="ann", why="why")
    refusals: list[str | None] = []

    def send(ledger: Ledger, fence: Fence, tracker: MlflowTracker) -> int:
        sent = deliver_pending(ledger, fence, tracker)
        if not sent and not refusals:
            promote(registered, RUN, "candidate", 2, by="bob", why="why")
            refusals.append(None)
            refusals[0] = deliver(registered, RUN)
        return sent

    monkeypatch.setattr("flows.delivery.outbox.deliver_pending", send)
    assert deliver(registered, RUN) is None
    assert refusals[0] and "yatt promote of toy-1" in refusals[0]
    assert aliases(registered) == {"champion": 0, "candidate": 2}


class _Killed(BaseException):
    """The end of the process."""


class _Mortal:
    """MLflow's client in a process that dies after the client's n-th call."""

    def __init__(self, client: Any, calls: int) -> None:
        self._client = client
        self._left = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = getattr(self._client, name)(*arguments, **keywords)
            self._left -= 1
            if self._left == 0:
                raise _Killed
            return result

        return call


class _DyingTracker(MlflowTracker):
    def __init__(self, home: Home, calls: int) -> None:
        super().__init__(home.tracking_uri, home.artifacts)
        self.__dict__["_client"] = _Mortal(client_of(home), calls)


def terms(ledger: Ledger) -> Iterator[Fence]:
    """Yields the fences of successive drivers, each of which finds the previous one dead."""
    while True:
        yield ledger.leases.acquire(RUN, this_process("driver"), 600, holder_is_gone=lambda _: True)


def test_a_death_between_ledger_and_mlflow_changes_nothing(registered: Home) -> None:
    """The deliverer dies after every call to MLflow, each time after a different one; a version is missing at first."""
    client = client_of(registered)
    for version in versions(registered).values():
        client.delete_model_version("toy", str(version.version))
        client.delete_logged_model(version.tags["yatt.model_id"])
    for iteration, why in ((0, "the first"), (2, "better"), (0, "2 talks nonsense")):
        promote(registered, RUN, "champion", iteration, by="ann", why=why)
    deaths = 0
    with Ledger.open(registered.ledger) as ledger:
        for calls, fence in enumerate(terms(ledger), 1):
            try:
                while deliver_pending(ledger, fence, _DyingTracker(registered, calls)):
                    pass
                break
            except _Killed:
                deaths += 1
        assert deaths > 10
        assert ledger.outbox.counts(RUN)[0] == 0
    assert sorted(versions(registered)) == [0, 2]
    assert aliases(registered) == {"champion": 0, "rollback": 2}
    experiment = client.get_experiment_by_name("audit").experiment_id
    assert len(client.search_logged_models([experiment])) == 2
    said = json.loads(client.get_registered_model("toy").tags[alias_tag("champion")])
    assert (said["number"], said["why"]) == (5, "2 talks nonsense")


def test_an_overtaken_move_is_not_repeated(registered: Home) -> None:
    """A deliverer that was suspended while others continued sends its outdated rows."""
    with Ledger.open(registered.ledger) as ledger:
        mlflow_run = ledger.runs.find(RUN).mlflow_run_id
    said = {"alias": "champion", "by": "ann", "why": "why", "at": 1}
    old = row("alias", {**body_of("another-home", 2, "kept"), **said, "number": 1}, mlflow_run, "old")
    new = row("alias", {**body_of("another-home", 0, "kept"), **said, "number": 2}, mlflow_run, "new")
    tracker = MlflowTracker(registered.tracking_uri, registered.artifacts)
    for items in ([old], [new], [old, new], [old]):
        tracker.deliver(items)
    client = client_of(registered)
    champion = client.get_model_version_by_alias("toy", "champion")
    assert (champion.tags["yatt.iteration"], champion.tags["yatt.manifest_sha256"]) == ("0", "another-home")
    assert len(client.search_model_versions("name = 'toy'")) == 4, "another home's checkpoints are different ones"


@pytest.mark.parametrize("text", ["by hand", "[1]", '{"by": "ann"}', '{"number": null}'])
def test_an_overwritten_tag_does_not_block_a_move(registered: Home, text: str) -> None:
    with Ledger.open(registered.ledger) as ledger:
        mlflow_run = ledger.runs.find(RUN).mlflow_run_id
    client = client_of(registered)
    tag = alias_tag("champion")
    client.set_registered_model_tag("toy", tag, text)
    said = {"alias": "champion", "by": "ann", "why": "why", "at": 1, "number": 3}
    move = row("alias", {**body_of("another-home", 0, "kept"), **said}, mlflow_run, "move")
    MlflowTracker(registered.tracking_uri, registered.artifacts).deliver([move])
    assert json.loads(client.get_registered_model("toy").tags[tag])["number"] == 3


def test_a_gate_before_the_champion_is_passed_in_ones_own_name_and_role_only(registered: Home, yatt: Yatt) -> None:
    revise(registered, RUN, ["gates.promotion={roles: [approver]}"])
    ann = Person("ann", Role.ADMIN)
    bob = Person("bob", Role.OPERATOR)
    with pytest.raises(ConfigurationError, match="ann decides in their own name"):
        promote(registered, RUN, "champion", 2, by="bob", why="better", person=ann)
    assert yatt("promote", RUN, "--to", "champion", "--why", "better", "--by", "bob").code == 2
    waits = promote(registered, RUN, "champion", 2, by="bob", why="better", person=bob)
    assert waits.moves == () and waits.approval == 1
    done = promote(registered, RUN, "champion", 2, by="ann", why="better", person=ann)
    assert done.approval is None and [move.by for move in done.moves] == ["ann"]
