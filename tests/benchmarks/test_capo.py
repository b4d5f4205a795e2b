"""`benchmarks.capo`: its judge learns what the rule says, its verdicts are counted right, and its runs differ as they should."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.capo import critic
from benchmarks.capo.__main__ import CRITIC, GRPO, KINDS, ORACLE, SPEC, changes_of
from benchmarks.capo.critic import critique_of, demonstration, train_critic
from benchmarks.capo.verdicts import Verdicts, interval_low, verdicts_of
from yatt_core.datasets import gym
from yatt_core.experience.batch import SAMPLES_FILE
from yatt_core.experience.shard_log import JUDGEMENTS_FILE
from yatt_core.judges.critiques import wrong_steps_in
from yatt_core.judges.registry import build_judge
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.steps import split_steps
from yatt_core.protocols.judges import JudgeItem, JudgeRequest
from yatt_core.rewards.builtin import running_sums_steps
from yatt_core.spec import load_spec
from yatt_core.spec.rewards.judges import GenerativePart
from yatt_core.spec.rewards.steps import Lines
from yatt_core.spec.sections.data import ReasoningGymSource

BASE = load_spec(SPEC)
(SOURCE,) = BASE.data.sources
assert isinstance(SOURCE, ReasoningGymSource)
LINES = SOURCE.options["numbers"]


def prompts(count: int) -> list[Prompt]:
    rows = gym.entries("running_sums", {"numbers": LINES}, 1, count)
    return [Prompt(0, place, "", row["question"], row["answer"], row) for place, row in enumerate(rows)]


def test_the_judge_is_shown_what_the_rule_says() -> None:
    wrong_lines = right_chains = 0
    for seed, prompt in enumerate(prompts(100)):
        response, critique = demonstration(Random(seed), prompt)
        steps = split_steps(response, Lines())
        expected = running_sums_steps(prompt, steps)
        assert wrong_steps_in(critique, len(steps)) == {n for n, wrong in enumerate(expected, start=1) if wrong}
        wrong_lines = wrong_lines + sum(expected)
        right_chains = right_chains + (response == prompt.answer)
    assert wrong_lines > 100 and right_chains > 10
    (prompt,) = prompts(1)
    sums = (prompt.answer or "").split()
    assert critique_of(prompt, prompt.answer or "") == f"{''.join(two + two for two in sums)} []"


def test_the_demonstrations_leave_a_gap_and_responses_have_all_lines() -> None:
    rows = list(gym.entries("running_sums", SOURCE.options, 1, 2000))
    assert 0.1 < sum(gym.score(row["answer"], row) for row in rows) / len(rows) < 0.2
    assert BASE.sft is not None and BASE.sft.probe_every == BASE.sft.max_steps, "SFT runs to its end"
    digits_and_breaks = 2 * LINES - 1
    assert BASE.rollout.min_new_tokens == digits_and_breaks < BASE.rollout.max_new_tokens
    (part,) = load_spec(SPEC, changes_of(CRITIC, Path("judge"))).rewards.judges
    assert isinstance(part, GenerativePart)
    (prompt,) = prompts(1)
    all_wrong = critique_of(prompt, "\n".join("?" for _ in range(BASE.rollout.max_new_tokens // 2)))
    assert all_wrong.count(",") >= LINES - 1 and len(all_wrong) < part.max_new_tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_differ_in_their_critiques_alone(kind: str, tmp_path: Path) -> None:
    made = load_spec(SPEC, changes_of(kind, tmp_path))
    assert (made.rewards.critique is None) == (kind == GRPO)
    assert [part.kind for part in made.rewards.parts[1:]] == {
        GRPO: [],
        ORACLE: ["function"],
        CRITIC: ["generative"],
    }[kind]
    assert made.model_copy(update={"rewards": BASE.rewards}) == BASE


def test_the_interval_is_students() -> None:
    assert interval_low([0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(0.3 - 2.776 * np.sqrt(0.025) / np.sqrt(5))


def test_verdicts_are_counted_against_the_rule(tmp_path: Path) -> None:
    samples = [
        {"prompt": "Running sums modulo 10: 7 8 3", "response": "7\n6\n9"},
        {"prompt": "Running sums modulo 10: 1 1 1", "response": "1\n2\n4"},
    ]
    told = [["[2]", "[2, 3]"], ["[1]", "all"]]
    folder = tmp_path / "experience" / "b000" / "i000001" / "shard-0"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(samples), folder / SAMPLES_FILE)
    rows = [{"judgements": [{"answer": answer, "tokens": 3} for answer in answers]} for answers in told]
    pq.write_table(pa.Table.from_pylist(rows), folder / JUDGEMENTS_FILE)
    assert verdicts_of(tmp_path, "intersection") == Verdicts(1, 0, 1, 0.25, 12)
    assert verdicts_of(tmp_path, "union") == Verdicts(1, 2, 1, 0.25, 12)
    assert (Verdicts(1, 2, 1, 0.0, 0).precision, Verdicts(1, 2, 1, 0.0, 0).recall) == (1 / 3, 0.5)


@pytest.mark.verify
def test_a_trained_judge_can_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critic, "TRAINING", critic.TRAINING.model_copy(update={"max_steps": 3, "batch_size": 8}))
    (part,) = load_spec(SPEC, changes_of(CRITIC, tmp_path / "judge")).rewards.judges
    assert isinstance(part, GenerativePart)
    train_critic(part, prompts(20), tmp_path / "judge", 0, lambda step, loss: None)
    judge = build_judge(part, str(tmp_path / "judge"))
    (prompt,) = prompts(1)
    item = JudgeItem(0, prompt.text, prompt.answer or "", None, (1, 2, 3, 4), split_steps(prompt.answer or "", Lines()))
    (verdict,) = [verdict for piece in judge.judge(JudgeRequest((item,))) for verdict in piece]
    assert len(verdict.judgements) == 4 and not verdict.error
    assert verdict.judgements[0].prompt_tokens < 44, "a line of the question is two tokens"
