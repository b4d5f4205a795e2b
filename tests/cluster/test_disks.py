"""Nodes that share a run's folder are told from those that have one of their own under the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from ops.preflight.disks import check_disks
from tests.cluster.conftest import Head
from tests.cluster.run_actors import actors_spec
from yatt_core.cluster import connect, disks, nodes
from yatt_core.cluster.disks import disk_of, new_mark, require_one_disk, survey
from yatt_core.cluster.metering import UNINTERRUPTED, BytesMeter
from yatt_core.cluster.nodes import own_node_name
from yatt_core.errors import ConfigurationError
from yatt_core.protocols.receipts import InputsReceipt
from yatt_core.run_actors import node_files
from yatt_core.run_actors.node_files import NodeFiles
from yatt_core.run_actors.node_logs import LogSource, RayNodes

NAMESPACE = "disks"
NAMES = {"id-a": "a", "id-b": "b", "id-c": "c", "id-d": "d"}


def test_a_disk_has_the_name_of_the_first_node_that_looked(tmp_path: Path) -> None:
    mark = new_mark()
    one = tmp_path / "one" / "run"
    other = tmp_path / "other" / "run"
    assert [disk_of(str(one), mark, node) for node in ("a", "b")] == ["a", "a"]
    assert [disk_of(str(other), mark, node) for node in ("c", "d")] == ["c", "c"]
    assert disk_of(str(one), new_mark(), "b") == "b", "a mark of an earlier start says nothing"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """Has nodes c and d look in another folder, this process be on node a, and collects what nodes are told to do."""
    made: list[tuple[str, str]] = []

    def run_on(nodes: Sequence[str], function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> Any:
        made.extend((function.__name__, node) for node in nodes)
        if function is not disk_of:
            return [None for _ in nodes]
        folders = {node: str(tmp_path / ("run" if node in ("id-a", "id-b") else "elsewhere")) for node in nodes}
        return [function(folders[node], *arguments[node][1:]) for node in nodes]

    monkeypatch.setattr(node_files, "run_on", run_on)
    monkeypatch.setattr(node_files, "metered_get", lambda references, **_: references)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "id-a"))
    return made


def test_the_nodes_of_a_cluster_say_which_of_them_share_a_folder(attached: Head, tmp_path: Path) -> None:
    here = own_node_name()
    assert survey(tmp_path, 60.0) == {here: here}
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_node_sends_what_copies_of_its_logs_lack(attached: Head, tmp_path: Path) -> None:
    here = str(ray.get_runtime_context().get_node_id())
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "t0001.driver.jsonl").write_text("abcdef")
    live = LogSource("h1", here, "d1")
    gone = LogSource("h2", "0" * 56, "d2")
    found = RayNodes(tmp_path)({live: {"t0001.driver.jsonl": 4}, gone: {}})
    assert found == {live: {"t0001.driver.jsonl": b"ef"}}


def test_nodes_without_the_home_folder_are_refused_by_name_unless_there_is_an_object_store(tmp_path: Path) -> None:
    by_node = {"a": "a", "b": "a", "c": "c", "d": "c"}
    with pytest.raises(ConfigurationError, match=r"on c, d .*node b.*storage\.url"):
        require_one_disk(tmp_path, by_node, "b", None)
    require_one_disk(tmp_path, by_node, "b", "s3://bucket/prefix")
    require_one_disk(tmp_path, {"a": "a", "b": "a"}, "b", None)


def test_a_check_asks_the_cluster_that_the_environment_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []
    monkeypatch.setattr(connect, "connect_ray", lambda address, namespace: calls.append(address))
    monkeypatch.setattr(connect, "disconnect_ray", lambda: calls.append("disconnected"))
    monkeypatch.setattr(disks, "survey", lambda home, seconds: {"a": "a", "b": "b"})
    monkeypatch.setattr(nodes, "own_node_name", lambda: "a")
    monkeypatch.delenv("YATT_RAY_ADDRESS", raising=False)
    assert check_disks(tmp_path, actors_spec()) is None and calls == []
    monkeypatch.setenv("YATT_RAY_ADDRESS", "head:6379")
    with pytest.raises(ConfigurationError, match=r"on b .*storage\.url"):
        check_disks(tmp_path, actors_spec())
    assert calls == ["head:6379", "disconnected"]
    assert check_disks(tmp_path, actors_spec("storage.url=s3://bucket/prefix")) == {"a": "a", "b": "b"}


def files_of(folder: Path, *overrides: str) -> NodeFiles:
    return NodeFiles(actors_spec(*overrides), folder / "run", BytesMeter(), UNINTERRUPTED, 10.0)


def test_a_node_with_a_folder_of_its_own_needs_an_object_store(calls: list[Any], tmp_path: Path) -> None:
    files = files_of(tmp_path)
    files.examine({"id-a": "a", "id-b": "b"}, ())
    assert files.are_shared and files.by_node() == {}
    assert files.disk("id-b") == files.disk("id-that-has-just-joined"), (
        "without a store, no rank may send its share there"
    )
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"/run on c, d .*storage\.url"):
            files.examine(NAMES, ())
    files.examine(NAMES, {"id-c", "id-d"})
    assert files.are_shared, "nodes that get no actors need no files"


def test_each_disk_gets_code_and_inputs_once(calls: list[Any], tmp_path: Path) -> None:
    files = files_of(tmp_path, "storage.url=s3://bucket/prefix")
    files.examine(NAMES, ())
    assert not files.are_shared
    assert files.by_node() == {"a": "a", "b": "a", "c": "c", "d": "c"}
    assert files.log_sources() == (LogSource("c", "id-c", "id-c"),)
    assert files.disk("id-b") == files.disk("id-a") != files.disk("id-d") == files.disk("id-c")
    assert [node for name, node in calls if name == "bring_code"] == ["id-c"]
    calls.clear()
    files.examine(NAMES, ())
    assert calls == []
    (tmp_path / "run" / "inputs").mkdir()
    (tmp_path / "run" / "inputs" / "manifest.json").write_text('{"model_path": "model"}')
    files.bring(InputsReceipt("inputs", "", "0" * 64, "", 1, 1, 1, 1, 1))
    assert calls == [("bring_inputs", "id-a"), ("bring_inputs", "id-c")]
    files.examine({"id-a": "a", "id-b": "b"}, ())
    assert files.are_shared, "the nodes with disks of their own are gone"
