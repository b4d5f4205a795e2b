"""Critiques in a collector: rewards of tokens from votes of a judge or a rule, durable before use, exact after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.collection.local import LocalStream, collect, digests, spec_with
from yatt_core.algorithms.critique import token_rewards, voted
from yatt_core.dispatch.stream import VerdictArrival
from yatt_core.errors import DataError
from yatt_core.experience import judge_log, shard_log
from yatt_core.experience.batch import load_batch, load_table
from yatt_core.experience.shard_log import JUDGEMENTS_FILE
from yatt_core.judges.critiques import wrong_steps_in
from yatt_core.prompts.steps import split_steps
from yatt_core.protocols.judges import Judgement, Verdict
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spec.rewards.steps import Marker

STEPS = {"kind": "marker", "pattern": r"\b[0-9]*[02468]\b"}
"""A virtual response is a row of numbers; a step begins at each even one."""
JUDGE = {
    "name": "wrong", "kind": "generative", "template": "{prompt} {steps}", "judgements": 4, "weight": 0,
    "parse": {"kind": "wrong_steps"}, "engine": {"kind": "virtual", "clock_factor": 1e9},
}  # fmt: skip
RULE = {"name": "wrong", "function": "tests.rewards.own_rewards:even_steps", "weight": 0}


def critique_spec(part: dict[str, Any] = JUDGE, **critique: Any) -> Any:
    outcome = {"name": "right", "function": "virtual_score"}
    settings = {"part": "wrong", "steps": STEPS, **critique}
    return spec_with(rewards__parts=[outcome, part], rewards__critique=settings, rollout__engine__tool_call_fraction=0)


def sealed(folder: Path, receipts: Any) -> list[ShardRef]:
    return [ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in receipts]


def expected_rewards(row: dict[str, Any], wrong: Any) -> list[float]:
    """Computes the token rewards of a row of numbers by hand: a token of a virtual engine is a number."""
    owners = []
    step = 0
    for place, number in enumerate(row["response"].split()):
        step += int(number) % 2 == 0 and place > 0
        owners.append(step)
    owners += [step] * (len(row["response_tokens"]) - len(owners))
    return token_rewards(row["reward"], wrong, np.array(owners), 2.0, 1.0).tolist()


@pytest.mark.parametrize("vote", ["intersection", "majority", "union", "average"])
def test_the_votes_of_a_judges_critiques_are_the_rewards_of_tokens(tmp_path: Path, vote: Any) -> None:
    receipts, stream = collect(tmp_path, critique_spec(vote=vote))
    rows = load_table(tmp_path, sealed(tmp_path, receipts)).to_pylist()
    said = [row for r in receipts for row in pq.read_table(tmp_path / r.folder / JUDGEMENTS_FILE).to_pylist()]
    assert len(rows) == len(stream.judged) == 8 and all(row["response_tokens"] for row in rows)
    penalised = 0
    for row, verdict in zip(rows, said, strict=True):
        steps = split_steps(row["response"], Marker(pattern=STEPS["pattern"]))
        critiques = [wrong_steps_in(one["answer"], len(steps)) for one in verdict["judgements"]]
        assert len(critiques) == 4 and None not in critiques
        assert [one["score"] for one in verdict["judgements"]] == [len(one or ()) for one in critiques]
        wrong = voted([one or () for one in critiques], len(steps), vote)
        assert row["token_rewards"] == pytest.approx(expected_rewards(row, wrong), abs=1e-6)
        assert row["reward/wrong"] == pytest.approx(np.mean([len(one or ()) for one in critiques]))
        assert row["reward"] == row["reward/right"], "wrong steps cost their own tokens only"
        penalised += np.count_nonzero(wrong)
    assert penalised
    batch = load_batch(tmp_path, sealed(tmp_path, receipts))
    assert batch.token_rewards is not None and batch.token_rewards.dtype == np.float32
    np.testing.assert_array_equal(batch.token_rewards, np.concatenate([row["token_rewards"] for row in rows]))
    taken = batch.take(np.array([5, 2]))
    assert taken.token_rewards is not None
    assert taken.token_rewards.tolist() == [*rows[5]["token_rewards"], *rows[2]["token_rewards"]]


def test_a_judge_sees_the_steps_with_their_numbers(tmp_path: Path) -> None:
    _, stream = collect(tmp_path, critique_spec())
    for _, item in stream.judged:
        assert "".join(item.steps) == item.response and len(item.seeds) == 4


def test_a_rule_names_the_wrong_steps(tmp_path: Path) -> None:
    receipts, stream = collect(tmp_path, critique_spec(RULE))
    assert not stream.judged
    for row in load_table(tmp_path, sealed(tmp_path, receipts)).to_pylist():
        steps = split_steps(row["response"], Marker(pattern=STEPS["pattern"]))
        wrong = np.array([float(step.split()[0][-1] in "02468") for step in steps])
        assert row["reward/wrong"] == wrong.sum()
        assert row["token_rewards"] == pytest.approx(expected_rewards(row, wrong), abs=1e-6)


class Killed(BaseException):
    """Simulates the death of the process."""


def test_killed_after_every_chunk_the_rewards_of_tokens_are_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = critique_spec(vote="average")
    expected, undisturbed = collect(tmp_path / "undisturbed", made)
    real = judge_log.write_chunk
    kill_at = 0
    killed = True
    while killed:
        kill_at += 2
        written: list[str] = []

        def write(path: Path, *arguments: Any, written: list[str] = written, last: int = kill_at) -> str:
            digest = real(path, *arguments)
            written.append(path.name)
            if len(written) == last:
                raise Killed
            return digest

        folder = tmp_path / str(kill_at)
        killed = False
        with monkeypatch.context() as patched:
            patched.setattr(judge_log, "write_chunk", write)
            patched.setattr(shard_log, "write_chunk", write)
            try:
                collect(folder, made)
            except Killed:
                killed = True
        receipts, stream = collect(folder, made, term=2)
        assert digests(receipts) == digests(expected), kill_at
        assert len(stream.judged) < len(undisturbed.judged) or kill_at == 2
    assert kill_at > 6


class Unreadable(LocalStream):
    """A stream whose judge writes nothing readable about the first item of each request."""

    def _verdicts(self) -> Any:
        for judged in super()._verdicts():
            first, *others = judged.verdicts
            muddled = Verdict(first.number, tuple(Judgement("[1", None, 1, 1) for _ in first.judgements))
            yield VerdictArrival(judged.tag, judged.part, (muddled, *others))


def test_an_unreadable_critique_masks_the_sample_names_no_step_or_stops_the_run(tmp_path: Path) -> None:
    plain = critique_spec(vote="union")
    receipts, _ = collect(tmp_path / "absent", plain, stream=Unreadable(plain))
    rows = load_table(tmp_path / "absent", sealed(tmp_path, receipts)).to_pylist()
    assert len([row for row in rows if row["unscored"] == "wrong/unparsed"]) >= 4
    made = critique_spec({**JUDGE, "on_unparsed": "zero"}, vote="union")
    receipts, _ = collect(tmp_path / "zero", made, stream=Unreadable(made))
    rows = load_table(tmp_path / "zero", sealed(tmp_path, receipts)).to_pylist()
    clean = [row for row in rows if row["reward/wrong"] == 0.0]
    assert len(clean) >= 4
    for row in clean:
        assert row["token_rewards"] == pytest.approx([2 * row["reward"]] * len(row["response_tokens"]))
    strict = critique_spec({**JUDGE, "on_unparsed": "error", "on_failure": "stop"})
    with pytest.raises(DataError, match=r"reward part 'wrong'.*could not be parsed"):
        collect(tmp_path / "stop", strict, stream=Unreadable(strict))
