"""Functions of groups and batches, and coroutine functions: their scores depend on neither arrivals nor crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.collection.local import LocalStream, collect, digests, spec_with, tool
from yatt_core.collection import collector
from yatt_core.dispatch.stream import Arrival, VerdictArrival, nothing
from yatt_core.experience import shard_log
from yatt_core.experience.batch import load_table
from yatt_core.prompts.prompt import Completion
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spec import RunSpec

OWN = "tests.rewards.own_rewards:"
PARTS = [
    {"name": "facts", "function": f"{OWN}facts", "reads": "response"},
    {"name": "results", "function": f"{OWN}results"},
    {"name": "relative", "function": f"{OWN}relative_length"},
    {"name": "rank", "function": f"{OWN}rank", "reads": "response"},
    {"name": "asking", "function": f"{OWN}asking", "options": {"seconds": 0.01}},
]


class Killed(BaseException):
    """Ends a collector as a kill would."""


def with_parts(tools: bool) -> RunSpec:
    named = [tool("calculator", "yatt_core.tools.builtin:calculator")] if tools else []
    return spec_with(*named, rewards__parts=PARTS, rollout__batch_samples=4)


class Backward(LocalStream):
    """Delivers the responses of each decode batch one at a time, the last one first."""

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | VerdictArrival[Any] | None]:
        held = list[Arrival[Any]]()
        for arrival in super().arrivals(beside):
            assert isinstance(arrival, Arrival)
            held.append(arrival)
            if arrival.complete:
                *others, first = (replace(one, complete=False) for one in reversed(held))
                yield from others
                yield replace(first, complete=True)
                held.clear()


@pytest.mark.parametrize("tools", [False, True])
def test_the_order_of_arrival_and_the_split_over_controllers_do_not_change_scores(tmp_path: Path, tools: bool) -> None:
    made = with_parts(tools)
    expected, _ = collect(tmp_path / "forward", made, shards=2)
    backward, _ = collect(tmp_path / "backward", made, shards=2, stream=Backward(made))
    assert digests(backward) == digests(expected)


@pytest.mark.parametrize("tools", [False, True])
def test_killed_before_or_after_any_chunk_the_scores_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: bool
) -> None:
    made = with_parts(tools)
    real = shard_log.write_chunk
    expected, _ = collect(tmp_path / "undisturbed", made, shards=1)
    table = load_table(
        tmp_path / "undisturbed", [ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in expected]
    )
    assert len(set(table.column("reward").to_pylist())) > 3
    kill_at = 0
    killed = True
    while killed:
        written: list[str] = []

        def write(path: Path, *arguments: Any, written: list[str] = written, last: int = kill_at) -> str:
            if len(written) == last:
                raise Killed
            written.append(path.name)
            return real(path, *arguments)

        monkeypatch.setattr(shard_log, "write_chunk", write)
        try:
            collect(tmp_path / str(kill_at), made, shards=1)
            killed = False
        except Killed:
            pass
        monkeypatch.setattr(shard_log, "write_chunk", real)
        receipts, _ = collect(tmp_path / str(kill_at), made, term=2, shards=1)
        assert digests(receipts) == digests(expected), kill_at
        kill_at += 1
    assert kill_at > 3


def chunks_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the chunks that a shard of several decode batches has written."""
    made = with_parts(tools=False)
    written: list[str] = []
    real = shard_log.write_chunk

    def write(path: Path, *arguments: Any) -> str:
        written.append(path.name)
        return real(path, *arguments)

    monkeypatch.setattr(shard_log, "write_chunk", write)
    collect(tmp_path, made, shards=1)
    return written


def test_the_scores_that_complete_a_shard_are_durable_with_its_manifest_and_have_no_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = chunks_of(tmp_path, monkeypatch)
    responses = [name for name in written if "responses" in name]
    scores = [name for name in written if "scores" in name]
    assert len(scores) == len(responses) - 1 > 0


def test_scores_that_took_long_have_a_chunk_in_any_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "QUICK_SECONDS", 0.0)
    written = chunks_of(tmp_path, monkeypatch)
    assert sum("scores" in name for name in written) == sum("responses" in name for name in written)


def test_a_response_is_made_ready_for_its_functions_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = Completion.__dict__["of_turns"].__func__

    def of_turns(kind: type[Completion], text: str, *arguments: Any, **named: Any) -> Completion:
        made.append(text)
        return cast(Completion, real(kind, text, *arguments, **named))

    monkeypatch.setattr(Completion, "of_turns", classmethod(of_turns))
    spec = with_parts(tools=False)
    receipts, _ = collect(tmp_path, spec, shards=1, stream=Backward(spec))
    assert len(made) == sum(receipt.samples for receipt in receipts)
