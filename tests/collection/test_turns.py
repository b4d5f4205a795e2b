"""A collector's multi-turn rollouts: samples contain tool results; no completed call is repeated after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.collection.local import LocalStream, collect, digests, spec_with, tool
from yatt_core.dispatch.stream import Arrival, VerdictArrival, nothing
from yatt_core.experience import turn_log
from yatt_core.experience.batch import load_table
from yatt_core.experience.shard_log import ShardLog
from yatt_core.prompts.tool_calls import KINDS
from yatt_core.protocols.receipts import ShardRef
from yatt_core.rewards.scoring import RewardScorer, SampleScore
from yatt_core.tools.toolbox import Toolbox


def counting(file: Path) -> dict[str, Any]:
    return tool("echo", "tests.tools.functions:counting", options={"file": str(file)})


def table_of(folder: Path, receipts: Any) -> pa.Table:
    return load_table(folder, [ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in receipts])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[str], list[dict[str, Any]]]:
    """Returns digests, calls and rows of an undisturbed collection."""
    folder = tmp_path_factory.mktemp("undisturbed")
    receipts, _ = collect(folder, spec_with(counting(folder / "calls")))
    return digests(receipts), (folder / "calls").read_text().splitlines(), table_of(folder, receipts).to_pylist()


def test_tool_results_are_in_the_response_and_masked_from_the_loss(undisturbed: Any) -> None:
    _, calls, rows = undisturbed
    assert {row["turns"] for row in rows} == {1, 2, 3}
    assert len(calls) == sum(row["turns"] - 1 for row in rows)
    for row in rows:
        assert row["tool_error"] is None
        mask = np.array(row["loss_mask"])
        assert len(mask) == len(row["response_tokens"]) == len(row["log_probs_sampler"])
        assert mask[0] and mask[-1]
        assert (
            np.count_nonzero(np.diff(mask.astype(int)) < 0)
            == row["turns"] - 1
            == row["response"].count("<tool_result>")
        )
        assert not np.array(row["log_probs_sampler"])[~mask].any()
        told = "".join(part.partition("</tool_result>")[0] for part in row["response"].split("<tool_result>")[1:])
        assert bytes(np.array(row["response_tokens"])[~mask].tolist()).decode() == told
        assert row["truncated"] == (row["finish"] != "stop")
    assert {row["finish"] for row in rows} >= {"stop", "turns"}


def test_later_turns_have_their_own_seeds_and_the_remaining_token_budget(tmp_path: Path) -> None:
    made = spec_with(counting(tmp_path / "calls"), rollout__max_new_tokens=12)
    receipts, stream = collect(tmp_path, made)
    seeds = np.concatenate([request.seeds.reshape(-1) for request in stream.asked])
    assert len(set(seeds.tolist())) == len(seeds)
    later = [request for request in stream.asked if request.seeds.shape[1] == 1]
    assert later and all(0 < limit < 12 for request in later for limit in request.prompt_limits.tolist())
    for row in table_of(tmp_path, receipts).to_pylist():
        assert sum(row["loss_mask"]) <= 12
        assert (row["finish"] == "length") == (sum(row["loss_mask"]) == 12 and row["finish"] != "stop")


@pytest.mark.parametrize("shards", [1, 4])
def test_results_do_not_depend_on_shards_or_parallel_calls(tmp_path: Path, undisturbed: Any, shards: int) -> None:
    made = spec_with(counting(tmp_path / "calls"), rollout__batch_samples=6)
    made = made.model_copy(
        update={
            "rollout": made.rollout.model_copy(
                update={"tools": made.rollout.tools.model_copy(update={"parallel_calls": 1})}
            )
        }
    )
    assert digests(collect(tmp_path, made, shards=shards)[0]) == undisturbed[0]


class Killed(BaseException):
    """Simulates the death of the process."""


def test_killed_after_every_chunk_results_are_equal_and_no_completed_call_is_repeated(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, calls, _ = undisturbed
    file = tmp_path / "calls"
    made = spec_with(counting(file))
    real = turn_log.write_chunk
    between = 0
    kill_at = 0
    killed = True
    with closing(Toolbox(made.rollout.tools)) as toolbox:
        while killed:
            kill_at += 1
            file.write_text("")
            written: list[str] = []

            def write(path: Path, *arguments: Any, written: list[str] = written, last: int = kill_at) -> str:
                digest = real(path, *arguments)
                written.append(path.name)
                if len(written) == last:
                    raise Killed
                return digest

            monkeypatch.setattr(turn_log, "write_chunk", write)
            try:
                collect(tmp_path / str(kill_at), made, term=1, toolbox=toolbox)
                killed = False
            except Killed:
                monkeypatch.setattr(turn_log, "write_chunk", real)
            toolbox.close()  # waits for running calls, so that they are counted
            in_flight = len(file.read_text().splitlines()) - sum(".call-" in name for name in written)
            # In a later term, or in the same term by another controller, which has its own folder.
            receipts, _ = collect(tmp_path / str(kill_at), made, term=1 + kill_at % 2, toolbox=toolbox)
            assert digests(receipts) == expected, kill_at
            made_again = len(file.read_text().splitlines()) - len(calls)
            assert made_again <= in_flight, "a call whose result was on disk was repeated"
            between += killed and ".call-" in written[-1] and in_flight == 0
    assert kill_at > 10
    assert between >= 3, "too few kills between the last result of a turn and the next turn"


def test_a_tool_result_of_a_different_history_is_not_used(tmp_path: Path, undisturbed: Any) -> None:
    """A lost turn is generated again; what followed it is used only if the new turn is the same."""
    made = spec_with(counting(tmp_path / "calls"))
    receipts, _ = collect(tmp_path, made, term=1)
    assert digests(receipts) == undisturbed[0]
    own = tmp_path / "log"
    own.mkdir()
    log = turn_log.TurnLog([own], 0, "plan", lambda: own)
    turn = pa.table({"tokens": [[1, 2]]})
    log.append_turn(turn)
    log.append_answer(0, turn_log.ToolAnswer("one"))
    log.append_turn(turn)
    again = turn_log.TurnLog([own], 0, "plan", lambda: own)
    assert again.turn() == turn and again.answer(0) == turn_log.ToolAnswer("one") and again.answer(1) is None
    assert again.turn() == turn
    other = turn_log.TurnLog([own], 0, "plan", lambda: own)
    assert other.turn() is not None
    other.append_answer(0, turn_log.ToolAnswer("two"))
    assert other.turn() is None, "the second turn followed another answer"
    assert turn_log.TurnLog([own], 0, "another plan", lambda: own).turn() is None


@pytest.mark.parametrize(
    ("misbehaving", "error"),
    [
        ("hang", "timeout: hang: took longer than 0.2 s"),
        ("broken", "raised: broken: raised ValueError: no such thing: <object object at 0x...> in "),
        ("hog", "memory: hog: needed more than 64 MiB"),
        ("die", "died: die: its process was ended by SIGSEGV"),
    ],
)
def test_a_misbehaving_tool_gives_flagged_samples(tmp_path: Path, misbehaving: str, error: str) -> None:
    seconds = 0.2 if misbehaving == "hang" else 20.0
    made = spec_with(tool(misbehaving, timeout_seconds=seconds, memory_mb=64), data__prompts_per_iteration=2)
    receipts, _ = collect(tmp_path, made)
    rows = table_of(tmp_path, receipts).to_pylist()
    flagged = [row for row in rows if row["turns"] > 1]
    assert flagged and len(flagged) < len(rows)
    for row in rows:
        assert (row["tool_error"] or "").startswith(error) == (row["turns"] > 1)
        assert ("<tool_result>error: " in row["response"]) == (row["turns"] > 1)
    kind = error.partition(":")[0]
    sums = {key: sum(receipt.sums[key] for receipt in receipts) for key in receipts[0].sums}
    assert sums[f"tool_errors/{kind}"] == len(flagged)
    assert sum(sums[f"tool_errors/{other}"] for other in KINDS) == len(flagged)
    assert sums["tool_calls"] == sum(row["turns"] - 1 for row in rows)
    again, _ = collect(tmp_path / "again", made)
    assert digests(again) == digests(receipts), "failures must be as reproducible as results"


def test_a_response_whose_tool_got_no_answer_ends_there_and_has_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yatt_core.redoing.FIRST_SECONDS", 0.001)
    made = spec_with(tool("asking"))
    receipts, _ = collect(tmp_path, made)
    rows = table_of(tmp_path, receipts).to_pylist()
    ended = [row for row in rows if row["finish"] == "tool"]
    assert ended and any(row["turns"] > 1 and row["finish"] != "tool" for row in rows)
    for row in rows:
        assert (row["unscored"] == "tools/unavailable") == (row["finish"] == "tool")
        assert ((row["tool_error"] or "").startswith("unavailable: ")) == (row["finish"] == "tool")
        assert "busy" not in row["response"], "the policy is told of what a service answers, not of its absence"
    for row in ended:
        assert (row["reward"], row["correct"], row["loss_mask"][-1]) == (0.0, False, True)


def test_calls_that_cannot_be_made_give_flagged_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spec_with(tool("calculator", "calculator"), rollout__tools__max_turns=2)
    texts = iter(['<tool_call>{"name": "calculater", "arguments": {}}</tool_call>', "<tool_call>1 + 1</tool_call>"])
    from yatt_core.prompts.virtual_codec import VirtualCodec

    real = VirtualCodec.decode

    def decode(self: VirtualCodec, tokens: Any) -> str:
        text = real(self, tokens)
        return next(texts, "") if "<tool_call>" in text else text

    monkeypatch.setattr(VirtualCodec, "decode", decode)
    receipts, _ = collect(tmp_path, made)
    errors = [row["tool_error"] for row in table_of(tmp_path, receipts).to_pylist() if row["tool_error"]]
    assert sorted(error.partition(":")[0] for error in errors) == ["malformed", "unknown"]


def test_without_tools_samples_have_no_tool_columns(tmp_path: Path) -> None:
    receipts, _ = collect(tmp_path, spec_with())
    table = table_of(tmp_path, receipts)
    assert not {"turns", "tool_error"} & set(table.column_names)
    assert all(table["loss_mask"].combine_chunks().flatten().to_pylist())
    assert "turns" not in receipts[0].sums


IMAGES = {"data__sources": [{"kind": "jsonl", "path": "p.jsonl", "image_field": "image"}]}


def test_images_are_sent_in_every_turn(tmp_path: Path) -> None:
    receipts, stream = collect(tmp_path, spec_with(counting(tmp_path / "calls"), **IMAGES))
    rows = table_of(tmp_path, receipts).to_pylist()
    assert all(
        row["media"] == ("" if row["prompt_ordinal"] % 2 == 0 else f"{row['prompt_ordinal']:064x}") for row in rows
    )
    shown = {row["prompt_tokens"][-1]: row["media"] for row in rows}
    later = [request for request in stream.asked if request.question_lengths is not None]
    assert later and any(request.media for request in later)
    for request in later:
        assert request.question_lengths is not None
        lengths = request.question_lengths.tolist()
        media = request.media or [()] * len(lengths)
        for context, length, addresses in zip(request.prompts, lengths, media, strict=True):
            assert len(context) > length
            assert " ".join(addresses) == shown[int(context[length - 1])], (
                "the image belongs to the question at the start of the context"
            )


class Watched(LocalStream):
    """A stream that notes each arrival: a complete batch, or a piece of one.

    stop: number of complete batches after which the stream ends.
    """

    def __init__(self, made: Any, notes: list[str], stop: int | None = None) -> None:
        super().__init__(made)
        self._notes = notes
        self._stop = stop

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Any] | VerdictArrival[Any] | None]:
        complete = 0
        for arrival in super().arrivals(beside):
            assert isinstance(arrival, Arrival)
            if complete == self._stop:
                return
            complete += arrival.complete
            self._notes.append("complete" if arrival.complete else "piece")
            yield arrival


class NotingScorer(RewardScorer):
    def __init__(self, made: Any, notes: list[str]) -> None:
        super().__init__(made.rewards)
        self._notes = notes

    def total(self, *arguments: Any) -> SampleScore:
        self._notes.append("score")
        return super().total(*arguments)


def test_responses_are_scored_during_decoding_and_the_last_ones_once_all_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spec_with(rollout__batch_samples=8)
    notes = list[str]()
    append = ShardLog.append_responses

    def noted(log: ShardLog, batch: int, table: pa.Table) -> None:
        append(log, batch, table)
        notes.append("durable")

    monkeypatch.setattr(ShardLog, "append_responses", noted)
    stream = Watched(made, notes)
    scorer = NotingScorer(made, notes)
    receipts, _ = collect(tmp_path / "watched", made, shards=1, stream=stream, scorer=scorer)
    before = notes[: notes.index("complete")]
    durable, *scores = notes[notes.index("complete") + 1 :]
    assert before[:2] == ["piece", "score"]
    assert durable == "durable" and set(scores) == {"score"}
    assert notes.count("score") == 8
    assert digests(receipts) == digests(collect(tmp_path / "again", spec_with())[0])


@pytest.mark.parametrize("stop", [0, 1])
def test_if_the_stream_is_cut_unfinished_shards_are_left_out(tmp_path: Path, stop: int) -> None:
    made = spec_with()
    receipts, _ = collect(tmp_path, made, stream=Watched(made, [], stop))
    assert [receipt.key.shard for receipt in receipts] == list(range(stop))
    whole, _ = collect(tmp_path, made, term=2)
    assert digests(whole) == digests(collect(tmp_path / "undisturbed", made)[0])
