"""Turns of single responses: a tool is called when its response's turn ends, and neither that nor kills change a bit."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.collection.local import LocalStream, collect, digests, spec_with, tool
from tests.services import ROOT
from tests.tools.functions import PATIENT
from yatt_core.collection import turns
from yatt_core.collection.open_shards import OpenBatch
from yatt_core.collection.turns import joins_turns
from yatt_core.dispatch.stream import Arrival, VerdictArrival, nothing
from yatt_core.errors import AwayError, InfrastructureError
from yatt_core.experience import joined_turn_log, turn_log
from yatt_core.experience.batch import load_table
from yatt_core.experience.joined_turn_log import JoinedTurnLog
from yatt_core.prompts.tool_calls import UNAVAILABLE, ToolAnswer, ToolCall
from yatt_core.protocols.generation import GeneratePiece
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spec import RunSpec, load_spec
from yatt_core.tools.toolbox import Toolbox

JOINED = {"rollout__engine__max_num_seqs": 8}
"""With it the virtual engine batches continuously."""
OFTEN = {"rollout__engine__tool_call_fraction": 0.8, "rollout__max_new_tokens": 60}


class QuickToolbox(Toolbox):
    """Answers in this process, some calls later than others.

    made: the calls, by tool and argument.
    """

    def __init__(self, made: RunSpec, seed: int = 0) -> None:
        super().__init__(made.rollout.tools)
        self._choose = random.Random(seed)
        self._left: dict[int, ToolCall | ToolAnswer] = {}
        self.made: Counter[str] = Counter()

    def begin(self, calls: Mapping[int, ToolCall | ToolAnswer]) -> None:
        self._left |= calls

    def arrived(self, seconds: float = 0.0) -> list[tuple[int, ToolAnswer]]:
        chosen = [number for number in self._left if seconds or self._choose.random() < 0.5]
        return [(number, self._answer(self._left.pop(number))) for number in chosen]

    def _answer(self, call: ToolCall | ToolAnswer) -> ToolAnswer:
        if isinstance(call, ToolAnswer):
            return call
        expression = str(call.arguments["expression"])
        self.made[expression] += 1
        return ToolAnswer(str(len(expression)))

    def close(self) -> None:
        self._left.clear()


class MixedStream(LocalStream):
    """Answers all requests at once, response by response in an order by lot."""

    def __init__(self, made: RunSpec, seed: int = 0) -> None:
        super().__init__(made)
        self._choose = random.Random(seed)

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | VerdictArrival[Any] | None]:
        going: list[tuple[int, Any, list[GeneratePiece]]] = []
        while going or self._queue or beside():
            for number, tag, request in self._queue:
                going.append((number, tag, list(self._engine.stream(request))))
            self._queue.clear()
            if not going or self._choose.random() < 0.2:
                yield None
                continue
            place = self._choose.randrange(len(going))
            number, tag, pieces = going[place]
            piece = pieces.pop(self._choose.randrange(len(pieces)))
            if not pieces:
                del going[place]
            yield Arrival(number, tag, piece, complete=not pieces)


def made_with(**changes: Any) -> RunSpec:
    return spec_with(tool("count", "tests.tools.functions:counting", options={"file": "calls"}), **changes)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Counter[str]]:
    """Returns digests and calls of turns of whole batches."""
    made = made_with()
    toolbox = QuickToolbox(made)
    receipts, _ = collect(tmp_path_factory.mktemp("planned"), made, toolbox=toolbox)
    return digests(receipts), toolbox.made


@pytest.mark.parametrize("seed", range(6))
def test_samples_and_calls_are_those_of_planned_turns_in_whatever_order_things_come(
    tmp_path: Path, planned: tuple[bytes, Counter[str]], seed: int
) -> None:
    made = made_with(**JOINED)
    toolbox = QuickToolbox(made, seed)
    stream = MixedStream(made, seed)
    receipts, _ = collect(tmp_path, made, toolbox=toolbox, stream=stream, shards=1 + seed % 2)
    assert (digests(receipts), toolbox.made) == planned
    first, later = (
        [request for request in stream.asked if (request.seeds.shape[1] > 1) == is_first] for is_first in (True, False)
    )
    assert sum(request.seeds.size for request in first) == 8 and len(first) < 8, "prompts are shared by their samples"
    assert len(later) > 2 and all(request.limits is not None for request in later)


def test_a_minimum_of_new_tokens_is_that_of_first_turns(tmp_path: Path) -> None:
    made = made_with(**JOINED, rollout__min_new_tokens=2)
    _, stream = collect(tmp_path, made, toolbox=QuickToolbox(made))
    assert {(request.seeds.shape[1] > 1, request.min_new_tokens) for request in stream.asked} == {(True, 2), (False, 0)}


def test_engines_that_batch_continuously_join_turns_unless_that_may_change_a_bit() -> None:
    vllm = "rollout.engine={{kind: vllm, instances: 1, dtype: {}}}"
    engines = {
        "rollout.engine={kind: torch}": False,
        "rollout.engine={kind: torch, continuous: true, max_num_seqs: 8}": True,
        vllm.format("bfloat16"): True,
        vllm.format("float32"): False,
    }
    found = {engine: joins_turns(load_spec(ROOT / "configs" / "tools.yaml", [engine])) for engine in engines}
    assert found == engines
    assert not joins_turns(spec_with(**JOINED)) and joins_turns(made_with(**JOINED)), "a run without tools has no turns"


class Idle(LocalStream):
    """A stream that counts the open responses once only calls that wait for a file are left, and then writes the file.

    unfinished: the open responses, by batch.
    """

    def __init__(self, made: RunSpec, file: Path) -> None:
        super().__init__(made)
        self._file = file
        self.unfinished: dict[int, int] = {}
        self._batches: dict[int, OpenBatch] = {}

    def submit(self, tag: Any, request: Any, ahead: bool = False) -> int:
        self._batches[tag.number] = tag
        return super().submit(tag, request, ahead)

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | VerdictArrival[Any] | None]:
        for arrival in super().arrivals(beside):
            if arrival is None and not self._file.exists() and self._is_still():
                self.unfinished = {number: len(batch.dialogue.members) for number, batch in self._batches.items()}
                self._file.touch()
            yield arrival

    def _is_still(self) -> bool:
        """Returns whether all calls in progress wait for the file."""
        dialogues = [batch.dialogue for batch in self._batches.values()]
        going = [dialogue.responses[number] for dialogue in dialogues for number in dialogue.members]
        return all(PATIENT in response.last_turn for response in going)


def waited(row: dict[str, Any]) -> bool:
    """Returns whether one of the calls that a response has made waited for the file."""
    calls = re.findall(r'"expression": "([^"]*)"', row["response"])[: row["turns"] - 1]
    return any(PATIENT in call for call in calls)


def test_a_slow_tool_delays_no_other_response(tmp_path: Path) -> None:
    file = tmp_path / "file"
    made = spec_with(tool("patient", options={"file": str(file)}), **JOINED, **OFTEN)
    assert made.rollout.tools is not None
    tools = made.rollout.tools.model_copy(update={"parallel_calls": 8})
    made = made.model_copy(update={"rollout": made.rollout.model_copy(update={"tools": tools})})
    stream = Idle(made, file)
    receipts, _ = collect(tmp_path, made, stream=stream, shards=1)
    rows = load_table(tmp_path, [ShardRef(receipts[0].folder, receipts[0].manifest_sha256)]).to_pylist()
    late = sum(waited(row) for row in rows)
    assert sum(stream.unfinished.values()) == late > 0
    assert max(row["turns"] for row in rows if not waited(row)) == 3, "others have gone through all of their turns"


class OneRead:
    """Stands in for the tool process: several calls are answered in one read, and those of the absent tool first.

    away: whether what tool `asking` asks answers nobody.
    made: the calls of the other tool, by argument.
    """

    def __init__(self, away: bool) -> None:
        self.away = away
        self.made: Counter[str] = Counter()
        self._calls: dict[int, ToolCall] = {}
        self._looks = 0

    def send(self, calls: Mapping[int, ToolCall]) -> None:
        self._calls |= calls
        self.made.update(str(call.arguments["expression"]) for call in calls.values() if call.name == "count")

    def receive(self, seconds: float) -> list[dict[str, Any]]:
        self._looks += 1
        if self._looks % 8 and not seconds:
            return []
        chosen = sorted(self._calls.items(), key=lambda item: item[1].name)
        self._calls.clear()
        return [{"number": number, **self._answer(call)} for number, call in chosen]

    def _answer(self, call: ToolCall) -> dict[str, str]:
        if self.away and call.name == "asking":
            return {"kind": UNAVAILABLE, "reason": "busy"}
        return {"value": str(call.arguments["expression"])}

    def close(self) -> None:
        self._calls.clear()


@pytest.mark.parametrize("changes", [{}, JOINED])
def test_a_tool_that_is_away_has_no_call_of_another_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr("yatt_core.tools.toolbox.RETRIES", 0)
    monkeypatch.setattr("yatt_core.availability.AWAY_SECONDS", 0.0)
    both = spec_with(tool("count", "tests.tools.functions:counting"), tool("asking"), **OFTEN, **changes)
    undisturbed = OneRead(away=False)
    disturbed = OneRead(away=True)

    def collected(process: OneRead, folder: str, term: int) -> bytes:
        toolbox = Toolbox(both.rollout.tools)
        monkeypatch.setattr(toolbox, "_process", process)
        return digests(collect(tmp_path / folder, both, term=term, toolbox=toolbox, shards=1)[0])

    expected = collected(undisturbed, "undisturbed", 1)
    with pytest.raises(AwayError, match="what tool 'asking' asks is away"):
        collected(disturbed, "disturbed", 1)
    assert disturbed.made
    disturbed.away = False
    assert collected(disturbed, "disturbed", 2) == expected
    assert disturbed.made == undisturbed.made


class LostTools(QuickToolbox):
    """Fails as soon as it has a call."""

    def arrived(self, seconds: float = 0.0) -> list[tuple[int, ToolAnswer]]:
        raise InfrastructureError("the tool process has ended")


class Counting(LocalStream):
    """Counts the responses that it hands out."""

    handed_out = 0

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | VerdictArrival[Any] | None]:
        for arrival in super().arrivals(beside):
            if isinstance(arrival, Arrival):
                self.handed_out += len(arrival.piece.rows)
            yield arrival


def test_what_was_drawn_is_durable_before_a_failure_of_the_tools_is_raised(
    tmp_path: Path, planned: tuple[bytes, Counter[str]]
) -> None:
    expected, calls = planned
    made = made_with(**JOINED)
    before = Counting(made)
    with pytest.raises(InfrastructureError):
        collect(tmp_path, made, toolbox=LostTools(made), stream=before, shards=1)
    receipts, stream = collect(tmp_path, made, term=2, toolbox=QuickToolbox(made), shards=1)
    assert digests(receipts) == expected
    drawn = sum(request.seeds.size for request in stream.asked)
    assert drawn + before.handed_out == 8 + calls.total(), "nothing is drawn again"


class Killed(BaseException):
    """Simulates the death of the process."""


def test_killed_between_chunks_samples_are_equal_and_nothing_durable_is_repeated(
    tmp_path: Path, planned: tuple[bytes, Counter[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, calls = planned
    made = made_with(**JOINED)
    real = joined_turn_log.write_chunk
    kill_at = 0
    killed = True
    drawn_again = []
    while killed:
        kill_at += 3
        written: list[tuple[str, int]] = []

        def write(path: Path, table: pa.Table, *more: Any, written: Any = written, last: int = kill_at) -> str:
            digest = real(path, table, *more)
            written.append((path.name.split(".")[1].partition("-")[0], table.num_rows))
            if len(written) == last:
                raise Killed
            return digest

        folder = tmp_path / str(kill_at)
        toolbox = QuickToolbox(made, kill_at)
        monkeypatch.setattr(joined_turn_log, "write_chunk", write)
        try:
            collect(folder, made, term=1, toolbox=toolbox, stream=MixedStream(made, kill_at), shards=1)
            killed = False
        except Killed:
            monkeypatch.setattr(joined_turn_log, "write_chunk", real)
        again = QuickToolbox(made, kill_at + 1)
        stream = MixedStream(made, kill_at + 1)
        # In a later term, or in the same term by another controller, which has its own folder.
        receipts, _ = collect(folder, made, term=1 + kill_at % 2, toolbox=again, stream=stream, shards=1)
        assert digests(receipts) == expected, kill_at
        if killed:
            answers = sum(rows for kind, rows in written if kind == "answers")
            assert again.made.total() == calls.total() - answers, "exactly the calls without a durable answer are made"
            turns = sum(rows for kind, rows in written if kind == "turns")
            drawn_again.append(sum(request.seeds.size for request in stream.asked) + turns)
    assert kill_at > 10 and len(set(drawn_again)) == 1, "exactly the turns that are not durable are drawn"


@pytest.mark.parametrize("joins", [True, False])
def test_a_batch_goes_on_in_the_way_in_which_it_was_begun(
    tmp_path: Path, planned: tuple[bytes, Counter[str]], monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    """As after an upgrade in the middle of a shard; another batch is begun in the way of the run."""
    expected, calls = planned
    module = joined_turn_log if joins else turn_log
    real = module.write_chunk
    written: Counter[str] = Counter()

    def write(path: Path, table: pa.Table, labels: dict[str, str]) -> str:
        digest: str = real(path, table, labels)
        written["answers" if "call" in path.name or "answers" in path.name else "turns"] += table.num_rows
        if written["answers"]:
            raise Killed
        return digest

    def way(joins: bool) -> None:
        monkeypatch.setattr(turns, "joins_turns", lambda spec: joins)

    made = spec_with(tool("count", "tests.tools.functions:counting", options={"file": str(tmp_path / "calls")}))
    way(joins)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, "write_chunk", write)
        collect(tmp_path, made, toolbox=QuickToolbox(made), shards=1)
    way(not joins)
    receipts, stream = collect(tmp_path, made, term=2, shards=1)
    assert digests(receipts) == expected
    asked = sum(request.seeds.size for request in stream.asked)
    assert asked + written["turns"] == 8 + calls.total(), "exactly the turns that are not durable are drawn"
    made_again = (tmp_path / "calls").read_text().splitlines()
    assert len(made_again) + written["answers"] == calls.total(), "and exactly the calls without a durable answer made"


def turn(*tokens: int) -> pa.Table:
    return pa.table({"tokens": [list(tokens)], "finish": pa.array([0], pa.int8())})


def test_what_is_durable_counts_only_behind_the_same_turns_and_answers(tmp_path: Path) -> None:
    own = tmp_path / "log"
    own.mkdir()

    def opened(plan: str = "plan") -> JoinedTurnLog:
        return JoinedTurnLog([own], 0, plan, lambda: own)

    log = opened()
    log.append_turns({2: turn(1, 2), 0: turn(3)})
    log.append_answers({2: ToolAnswer("one")})
    log.append_turns({2: turn(1, 2)})
    rows = joined_turn_log.read_chunk(own / "batch-0000.turns-000000.arrow")
    assert rows is not None and rows.table["response"].to_pylist() == [0, 2], "in the order of the responses"

    again = opened()
    assert again.turn(2) == turn(1, 2) and again.turn(0) == turn(3) and again.turn(1) is None
    assert again.answer(0) is None and again.answer(2) == ToolAnswer("one")
    assert again.turn(2) == turn(1, 2)
    assert again.answer(2) is None, "an equal turn before it was answered"
    other = opened()
    other.turn(2)
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    other.own_folder = lambda: elsewhere
    other.append_answers({2: ToolAnswer("two")})
    assert other.turn(2) is None, "the second turn followed another answer"
    assert opened("another plan").turn(2) is None
