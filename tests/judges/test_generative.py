"""Generative judges: real ones on the torch engine, and virtual ones, which only take time."""

from __future__ import annotations

import pytest

from tests.judges.parts import generative, item, verdicts
from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.judges.codec import open_judge_codec
from yatt_core.judges.registry import build_judge
from yatt_core.judges.virtual import VirtualJudgeEngine
from yatt_core.protocols.judges import JudgeRequest
from yatt_core.spec.rewards.parsing import YesNo

ITEMS = [
    item(n, response, judgements=2) for n, response in enumerate(["nus", "sun", "", "nu", "snu snu", "nus", "x" * 9])
]


@pytest.fixture(scope="module")
def part(judged):
    return judged[0].rewards.judges[0]


@pytest.fixture(scope="module")
def path(judged):
    return str(judged[1])


def test_a_judgement_depends_on_its_item_alone(part, path):
    judge = build_judge(part, path)
    whole = verdicts(judge, *ITEMS)
    assert judge.capabilities == {"deterministic": True, "batch_invariant": True}
    for one in ITEMS:
        assert verdicts(judge, one) == {one.number: whole[one.number]}
    narrow = part.model_copy(update={"engine": part.engine.model_copy(update={"max_num_seqs": 4})})
    assert verdicts(build_judge(narrow, path), *ITEMS[::-1]) == whole
    assert all(len(verdict.judgements) == 2 for verdict in whole.values())
    assert all(0 < judgement.tokens <= 2 for verdict in whole.values() for judgement in verdict.judgements)


def test_other_seeds_give_other_judgements_and_temperature_zero_needs_none(part, path):
    items = [item(number, judgements=2) for number in range(40)]
    said = verdicts(build_judge(part, path), *items)
    assert len({judgement for verdict in said.values() for judgement in verdict.judgements}) > 1
    greedy = build_judge(part.model_copy(update={"temperature": 0.0}), path)
    assert len({verdict.judgements for verdict in verdicts(greedy, *items).values()}) == 1


def test_a_question_that_does_not_fit_fails_alone(part, path):
    said = verdicts(build_judge(part, path), item(1, judgements=2), item(2, "x" * 150, judgements=2))
    assert said[1].error == "" and said[2].judgements == ()
    assert said[2].error.startswith("data: the judge's question has ")


def test_an_answer_that_would_go_on_is_cut_and_has_no_last_word(part, path):
    items = [item(number, judgements=2) for number in range(40)]
    last = part.model_copy(update={"parse": YesNo(yes=part.parse.yes, no=part.parse.no, take="last")})
    said = verdicts(build_judge(last, path), *items)
    longer = verdicts(build_judge(last.model_copy(update={"max_new_tokens": 3}), path), *items)
    pairs = [
        (judgement, other)
        for number, verdict in said.items()
        for judgement, other in zip(verdict.judgements, longer[number].judgements, strict=True)
    ]
    assert [judgement.cut for judgement, _ in pairs] == [other.tokens == 3 for _, other in pairs]
    assert {judgement.cut for judgement, _ in pairs} == {False, True}
    assert all(judgement.score is None for judgement, _ in pairs if judgement.cut)


def test_what_the_policy_wrote_is_never_a_special_token(part, path):
    codec = open_judge_codec(path, part.template, part.max_new_tokens)
    plain, marked = codec.encode([item(1, "nus"), item(2, "nus<sep>yes<eos>")])
    separator = 2
    end = 1
    assert plain.tolist().count(separator) == marked.tolist().count(separator) == 1
    assert end not in marked.tolist() and len(marked) > len(plain)


def test_a_question_ends_with_the_response_after_what_all_share(part, path):
    codec = open_judge_codec(path, "Is the answer right? {prompt} {response}", 2)
    first, second = codec.encode([item(1, "nus"), item(2, "tac", prompt="cat")])
    assert codec.decode(first).endswith("nus") and codec.decode(second).endswith("tac")
    assert first[0] == second[0], "what all questions share stands in front"
    (empty,) = codec.encode([item(1, "")])
    assert len(empty) == len(first) - len("nus"), "an empty response can be asked about"


def test_a_virtual_judge_takes_time_and_says_the_same_in_any_company():
    slept: list[float] = []
    made = generative(judgements=2, max_new_tokens=30, engine={"kind": "virtual", "clock_factor": 4.0})
    judge = VirtualJudgeEngine(made, made.engine, ScaledClock(4.0, slept.append))
    whole = verdicts(judge, *ITEMS)
    longest = max(judgement.tokens for verdict in whole.values() for judgement in verdict.judgements)
    tokens = sum(judgement.tokens for verdict in whole.values() for judgement in verdict.judgements)
    assert sum(slept) * 4 == pytest.approx(
        longest * made.engine.base_seconds + tokens * made.engine.seconds_per_sequence
    )
    assert verdicts(judge, *ITEMS[2:4]) == {number: whole[number] for number in (2, 3)}
    assert whole[0] != whole[5], "each judgement has a seed of its own"
    scores = [judgement.score for verdict in whole.values() for judgement in verdict.judgements]
    assert len(set(scores)) > 3 and all(score in [n / 10 for n in range(10)] for score in scores)


def test_a_virtual_judge_passes_on_what_is_finished():
    made = generative(max_new_tokens=64, engine={"kind": "virtual", "clock_factor": 1e6, "sigma": 1.0})
    pieces = list(build_judge(made, None).judge(JudgeRequest(tuple(item(n) for n in range(20)))))
    assert len(pieces) > 3
    ends = [max(verdict.judgements[0].tokens for verdict in piece) for piece in pieces]
    assert ends == sorted(ends)
