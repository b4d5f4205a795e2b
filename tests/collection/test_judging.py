"""Judged rewards in a collector: requested as responses end, durable before use, never requested again after a kill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.phases.metrics import add_sums, experience_metrics
from tests.collection.local import LocalStream, collect, digests, spec_with
from yatt_core.dispatch.stream import VerdictArrival, nothing
from yatt_core.errors import DataError
from yatt_core.experience import judge_log, shard_log
from yatt_core.experience.batch import load_table
from yatt_core.experience.judge_log import JudgeLog
from yatt_core.experience.shard_log import JUDGEMENTS_FILE, read_shard_work
from yatt_core.experience.shard_work import shard_work
from yatt_core.protocols.judges import JudgeItem, Judgement, Verdict
from yatt_core.protocols.receipts import ShardRef

JUDGE = {
    "name": "helpful", "kind": "generative", "template": "{prompt} {response}", "judgements": 2,
    "engine": {"kind": "virtual", "clock_factor": 1e9}, "weight": 0.5,
}  # fmt: skip


def judged_spec(**changes: Any) -> Any:
    function = {"name": "rule", "function": "virtual_score", "weight": 0.25}
    return spec_with(**{"rewards__parts": [function, JUDGE], **changes})


def table_of(folder: Path, receipts: Any) -> Any:
    return load_table(folder, [ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in receipts])


def test_the_reward_is_the_weighted_sum_of_rule_and_judge(tmp_path: Path) -> None:
    receipts, stream = collect(tmp_path, judged_spec())
    rows = table_of(tmp_path, receipts).to_pylist()
    assert len(stream.judged) == len(rows) == 8
    for row in rows:
        assert row["reward"] == pytest.approx(0.25 * row["reward/rule"] + 0.5 * row["reward/helpful"])
    assert len({row["reward/helpful"] for row in rows}) > 2


def test_judgements_are_stored_with_the_samples(tmp_path: Path) -> None:
    receipts, _ = collect(tmp_path, judged_spec())
    said = [row for r in receipts for row in pq.read_table(tmp_path / r.folder / JUDGEMENTS_FILE).to_pylist()]
    samples = table_of(tmp_path, receipts).to_pylist()
    assert [(row["prompt_ordinal"], row["sample"]) for row in said] == [
        (row["prompt_ordinal"], row["sample"]) for row in samples
    ]
    for row, sample in zip(said, samples, strict=True):
        assert len(row["judgements"]) == 2 and not row["error"]
        assert sample["reward/helpful"] == pytest.approx(sum(one["score"] for one in row["judgements"]) / 2)
    work = read_shard_work(tmp_path, receipts[0])
    assert work.judged == tuple(tuple(one["tokens"] for one in row["judgements"]) for row in said[:4])
    assert work.response_tokens == tuple(len(sample["response_tokens"]) for sample in samples[:4])
    table = load_table(tmp_path, [ShardRef(receipts[0].folder, receipts[0].manifest_sha256)])
    judgements = said[:4]
    elsewhere = [{**row, "part": "an endpoint"} for row in judgements]
    both = pa.Table.from_pylist(judgements + elsewhere)
    assert shard_work(table, both, ["helpful"]).judged == work.judged, (
        "judgements of an endpoint use none of the run's devices"
    )


def test_a_response_is_judged_while_others_are_rolled_out(tmp_path: Path) -> None:
    order: list[str] = []

    class Watched(LocalStream):
        def arrivals(self, beside: Callable[[], bool] = nothing) -> Any:
            for arrival in super().arrivals(beside):
                order.append(
                    "verdict" if isinstance(arrival, VerdictArrival) else "whole" if arrival.complete else "piece"
                )
                yield arrival

    made = judged_spec()
    collect(tmp_path, made, stream=Watched(made))
    assert order.index("verdict") < order.index("whole")


def test_the_dispatcher_is_told_a_waves_progress(tmp_path: Path) -> None:
    made = judged_spec()
    _, stream = collect(tmp_path, made)
    assert stream.notes == {("b0.i1.w0", f"{shard}/0"): (4, 4) for shard in (0, 1)}
    _, again = collect(tmp_path, made, term=2)
    assert again.notes == stream.notes and not again.judged, "progress of sealed shards is reported too"


class Killed(BaseException):
    """Simulates the death of the process."""


def test_killed_after_every_chunk_results_are_equal_and_no_durable_verdict_is_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = judged_spec()
    expected, stream = collect(tmp_path / "undisturbed", made)
    asked = len(stream.judged)
    real = judge_log.write_chunk
    kill_at = 0
    killed = True
    saved = 0
    while killed:
        kill_at += 1
        written: list[str] = []

        def write(path: Path, *arguments: Any, written: list[str] = written, last: int = kill_at) -> str:
            digest = real(path, *arguments)
            written.append(path.name)
            if len(written) == last:
                raise Killed
            return digest

        folder = tmp_path / str(kill_at)
        first = LocalStream(made)
        with monkeypatch.context() as patched:
            patched.setattr(judge_log, "write_chunk", write)
            patched.setattr(shard_log, "write_chunk", write)
            try:
                collect(folder, made, term=1, stream=first)
                killed = False
            except Killed:
                pass
        durable = sum(
            len(judge_log.read_chunk(path).table)  # type: ignore[union-attr]
            for path in folder.rglob("*.judged-*.arrow")
        )
        receipts, second = collect(folder, made, term=1 + kill_at % 2)
        assert digests(receipts) == digests(expected), kill_at
        if killed and not any(receipt.adopted for receipt in receipts):
            assert len(second.judged) == asked - durable, kill_at
            saved += durable
    assert kill_at > 6 and saved > 0


def test_a_verdict_on_another_text_or_plan_is_not_used(tmp_path: Path) -> None:
    item = JudgeItem(0, "question", "answer", None, (1,))
    verdict = Verdict(0, (Judgement("yes", 1.0, 3, 5), Judgement("on the one", None, 8, 5, cut=True)))
    log = JudgeLog([tmp_path], 0, "plan", lambda: tmp_path)
    log.append("helpful", [item], [verdict])

    def reopened(plan: str = "plan") -> JudgeLog:
        return JudgeLog([tmp_path], 0, plan, lambda: tmp_path)

    assert reopened().find("helpful", item) == verdict
    assert reopened("another").find("helpful", item) is None
    assert reopened().find("other", item) is None
    assert reopened().find("helpful", JudgeItem(0, "question", "other answer", None, (1,))) is None
    assert reopened().find("helpful", JudgeItem(0, "question", "answer", None, (2,))) is None


class Mute(LocalStream):
    """A stream whose judge fails on the first item of each request."""

    def _verdicts(self) -> Any:
        for judged in super()._verdicts():
            first, *others = judged.verdicts
            yield VerdictArrival(judged.tag, judged.part, (Verdict(first.number, (), "data: too long"), *others))


def test_a_failing_judge_stops_the_run_scores_zero_or_masks_as_configured(tmp_path: Path) -> None:
    made = judged_spec(rewards__parts=[{"name": "rule", "function": "virtual_score"}, {**JUDGE, "on_failure": "stop"}])
    with pytest.raises(DataError, match=r"reward part 'helpful'.*too long"):
        collect(tmp_path / "stop", made, stream=Mute(made))
    lenient = judged_spec(
        rewards__parts=[{"name": "rule", "function": "virtual_score"}, {**JUDGE, "on_failure": "zero"}]
    )
    receipts, _ = collect(tmp_path / "zero", lenient, stream=Mute(lenient))
    flagged = [row for row in table_of(tmp_path / "zero", receipts).to_pylist() if row["reward_error"]]
    assert flagged and all(row["reward/helpful"] == 0.0 for row in flagged)
    masking = judged_spec()
    receipts, _ = collect(tmp_path / "mask", masking, stream=Mute(masking))
    rows = table_of(tmp_path / "mask", receipts).to_pylist()
    masked = [row for row in rows if row["unscored"]]
    assert {row["unscored"] for row in masked} == {"helpful/data"}
    assert len(masked) == len(flagged) < len(rows)
    assert all((row["reward"], row["correct"]) == (0.0, False) for row in masked)
    groups: dict[int, list[float]] = {}
    for row in rows:
        groups.setdefault(row["prompt_ordinal"], []).extend([] if row["unscored"] else [row["reward"]])
    told = {
        ordinal: facts
        for receipt in receipts
        for ordinal, *facts in zip(
            sorted({row["prompt_ordinal"] for row in table_of(tmp_path / "mask", [receipt]).to_pylist()}),
            receipt.groups.scored,
            receipt.groups.reward_min,
            receipt.groups.reward_max,
            strict=True,
        )
    }
    assert told == {
        ordinal: [len(rewards), min(rewards, default=0.0), max(rewards, default=0.0)]
        for ordinal, rewards in groups.items()
    }
    sums = add_sums([receipt.sums for receipt in receipts])
    metrics = {metric.key: metric.value for metric in experience_metrics(sums)}
    known = [row["reward"] for row in rows if not row["unscored"]]
    assert metrics["reward/mean"] == pytest.approx(sum(known) / len(known))
    assert metrics["unscored/helpful/data"] == len(masked)
    assert metrics["unscored_fraction"] == pytest.approx(len(masked) / len(rows))


class Rambling(LocalStream):
    """A stream whose judge is cut in its first judgement of each item, and says nothing about a batch's first item."""

    def _verdicts(self) -> Any:
        for judged in super()._verdicts():
            first, *others = judged.verdicts
            mute = [replace(judgement, score=None) for judgement in first.judgements]
            cut = [
                replace(other, judgements=(replace(other.judgements[0], score=None, cut=True), *other.judgements[1:]))
                for other in others
            ]
            yield VerdictArrival(judged.tag, judged.part, (replace(first, judgements=tuple(mute)), *cut))


def test_judgements_without_a_score_are_measured_whether_or_not_the_sample_has_one(tmp_path: Path) -> None:
    made = judged_spec()
    plain = table_of(tmp_path / "plain", collect(tmp_path / "plain", made)[0]).to_pylist()
    assert not any(row["unread_judgements"] for row in plain)
    receipts, _ = collect(tmp_path / "rambling", made, stream=Rambling(made))
    rows = table_of(tmp_path / "rambling", receipts).to_pylist()
    mute = [row for row in rows if row["unscored"]]
    cut = [row for row in rows if not row["unscored"]]
    assert mute and cut
    assert {(row["unscored"], row["unread_judgements"]) for row in mute} == {
        ("helpful/unparsed", "helpful/unparsed helpful/unparsed")
    }
    assert {row["unread_judgements"] for row in cut} == {"helpful/cut"}, "the other judgement decides alone"
    metrics = {
        metric.key: metric.value for metric in experience_metrics(add_sums([receipt.sums for receipt in receipts]))
    }
    assert metrics["unread_judgements/helpful/unparsed"] == 2 * len(mute)
    assert metrics["unread_judgements/helpful/cut"] == len(cut)
    assert metrics["judge/unread"] == pytest.approx((2 * len(mute) + len(cut)) / len(rows))
    assert metrics["judge/unparsed"] == pytest.approx(2 * len(mute) / len(rows))
    assert metrics["judge/cut"] == pytest.approx(len(cut) / len(rows))


def test_verdicts_that_failed_are_durable_and_read_back_as_they_were(tmp_path: Path) -> None:
    items = [JudgeItem(number, "question", f"answer {number}", None, (1,)) for number in range(2)]
    failed = Verdict(0, (), "infrastructure: status 503, 4 times")
    scored = Verdict(1, (Judgement("yes", 1.0, 3, 5),))
    log = JudgeLog([tmp_path], 0, "plan", lambda: tmp_path)
    log.append("helpful", items, [failed, scored])
    reopened = JudgeLog([tmp_path], 0, "plan", lambda: tmp_path)
    assert [reopened.find("helpful", item) for item in items] == [failed, scored]


class FailingOnce(LocalStream):
    """A stream whose judge fails on one item, the first that it is asked about, and may be killed just after that."""

    def __init__(self, made: Any, killed: bool) -> None:
        super().__init__(made)
        self._killed = killed
        self._failed = False

    def _verdicts(self) -> Any:
        for judged in super()._verdicts():
            if self._failed:
                yield judged
                continue
            self._failed = True
            first, *others = judged.verdicts
            yield VerdictArrival(judged.tag, judged.part, (Verdict(first.number, (), "infrastructure: 503"), *others))
            if self._killed:
                raise Killed


def test_a_collector_that_takes_over_obeys_a_failure_that_was_recorded(tmp_path: Path) -> None:
    made = judged_spec()
    expected, _ = collect(tmp_path / "undisturbed", made, stream=FailingOnce(made, killed=False))
    healthy, _ = collect(tmp_path / "healthy", made)
    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        collect(folder, made, term=1, stream=FailingOnce(made, killed=True))
    receipts, second = collect(folder, made, term=2)
    assert 0 < len(second.judged) < 8, "what is recorded is not asked again, although it would be answered now"
    assert digests(receipts) == digests(expected) != digests(healthy)
    assert [row["unscored"] for row in table_of(folder, receipts).to_pylist()].count("helpful/infrastructure") == 1
