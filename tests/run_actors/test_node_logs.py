"""Logs of nodes with disks of their own: copied to the driver's disk, with the node's name, also after the node is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ops.queries.log_files import LogTail, lost_logs
from yatt_core.logs import PARTS, log_file
from yatt_core.run_actors import node_logs
from yatt_core.run_actors.node_logs import Answer, LogSource, NodeLogs, Sizes, new_bytes

OTHER = LogSource("h2", "n2", "d2" * 8)
AGAIN = LogSource("h2", "n3", "d3" * 8)


class Nodes:
    """Other nodes' folders; a node without one does not answer."""

    def __init__(self, folders: dict[LogSource, Path]) -> None:
        self.folders = folders

    def __call__(self, sizes: Mapping[LogSource, Sizes]) -> dict[LogSource, Answer]:
        return {
            source: new_bytes(str(self.folders[source]), own) for source, own in sizes.items() if source in self.folders
        }


def write(folder: Path, time: float, message: str, actor: str = "trainer-1", part: int = 1) -> None:
    path = log_file(folder, actor, 1, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"time": time, "level": "info", "actor": actor, "message": message}
    with path.open("a") as stream:
        stream.write(json.dumps(record) + "\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(node_logs, "PAUSE_SECONDS", 3600.0)
    write(tmp_path / "here", 1.0, "of the driver", "driver")
    return tmp_path / "here"


def read(tail: LogTail) -> list[tuple[str | None, str]]:
    return [(record.get("node"), record["message"]) for record in tail.new_records()]


def test_records_of_other_nodes_arrive_once_with_the_node_s_name(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    write(there, 2.0, "first")
    logs = NodeLogs(here, Nodes({OTHER: there}))
    tail = LogTail(here / "logs")
    logs.follow((OTHER,))
    logs.copy()
    assert read(tail) == [(None, "of the driver"), ("h2", "first")]
    write(there, 3.0, "second")
    write(there, 4.0, "third", "controller-7")
    (there / "logs" / "notes.txt").write_text("not a log")
    logs.end()
    assert read(tail) == [("h2", "second"), ("h2", "third")]
    assert lost_logs(here / "logs") == []


def test_a_node_that_is_gone_is_named_and_its_records_stay(here: Path, tmp_path: Path) -> None:
    write(tmp_path / "there", 2.0, "first")
    nodes = Nodes({OTHER: tmp_path / "there"})
    logs = NodeLogs(here, nodes)
    logs.follow((OTHER,))
    logs.copy()
    nodes.folders = {}
    logs.copy()
    assert [lost.node for lost in lost_logs(here / "logs")] == ["h2"]
    nodes.folders = {OTHER: tmp_path / "there"}
    logs.copy()
    assert lost_logs(here / "logs") == [], "it answers again"
    write(tmp_path / "empty", 3.0, "on a new disk")
    nodes.folders = {AGAIN: tmp_path / "empty"}
    logs.follow((AGAIN,))
    logs.copy()
    assert [lost.node for lost in lost_logs(here / "logs")] == ["h2"]
    assert read(LogTail(here / "logs"))[1:] == [("h2", "first"), ("h2", "on a new disk")]
    logs.end(last=False)


def test_copies_are_bounded_like_the_logs_and_in_pieces(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_logs, "FILE_BYTES", 50)
    there = tmp_path / "there"
    for part in range(1, PARTS + 3):
        write(there, float(part), f"part {part}", part=part)
        if part > PARTS:
            log_file(there, "trainer-1", 1, part - PARTS).unlink()
    logs = NodeLogs(here, Nodes({OTHER: there}))
    logs.follow((OTHER,))
    for _ in range(4):
        logs.copy()
    logs.end(last=False)
    assert [message for node, message in read(LogTail(here / "logs")) if node] == [
        f"part {n}" for n in range(3, PARTS + 3)
    ]
