"""Scoring: weighted parts, time limits, and failures that stop the run or flag the sample."""

import signal
import threading
import time

import pytest

from tests.inputs.example_specs import SPELL, SUM, run_spec
from tests.spec.trees import tells
from yatt_core.datasets.gym import entries
from yatt_core.datasets.sources import collect_prompts
from yatt_core.errors import AwayError, DataError
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.protocols.judges import PartValue
from yatt_core.rewards.builtin import virtual_score
from yatt_core.rewards.scoring import NOT_JUDGED, RewardScorer, Scored
from yatt_core.rewards.time_limit import TimeLimitReached, call_within
from yatt_core.spec.rewards.scheme import FunctionPart, RewardSpec

PROMPT = Prompt(0, 4, "0/train/a.jsonl:5", "text", "answer", {"prompt": "text"})

FAILURES = {
    "raising": "raised ValueError: cannot judge 'abc'",
    "leaving": "raised SystemExit: 3",
    "sleeping": "took longer than 0.2 s",
    "spinning": "took longer than 0.2 s",
    "not_a_number": "returned nan, not a finite number",
    "infinite": "returned inf, not a finite number",
    "boundless": "returned a number beyond float64; a reward times its weight may be at most 1e+30",
    "unwritable": "raised ValueError: bad \\udc80 name",
    "speechless": "raised SpeechlessError: (its text is unavailable: RuntimeError)",
    "wordy": "returned str, not a number",
    "silent": "returned NoneType, not a number",
}


def limit(function):
    """Returns a time limit in seconds: a short one only for functions that never end."""
    return 0.2 if function in ("sleeping", "spinning") else 60.0


def part(name, function, **rest):
    function = function if function in ("exact_match", "reasoning_gym") else f"tests.rewards.broken_rewards:{function}"
    return {"name": name, "function": function, **rest}


class Scorer(RewardScorer):
    """Scores one response of one turn."""

    def one(self, prompt, response, sample=0, judged=NOT_JUDGED):
        completion = Completion.of_turns(response, [response], len(response))
        scored = Scored(prompt, completion, 0, sample)
        outcomes = {}
        for unit in ("response", "group", "batch"):
            outcomes |= self.outcomes(unit, [scored])[0]
        return self.total(scored, outcomes, judged)


def scorer(*parts, **rest):
    return Scorer(RewardSpec.model_validate({"parts": parts, **rest}))


def test_parts_are_weighted_and_one_decides_correctness():
    rewards = scorer(
        part("length", "length", weight=-0.5, options={"scale": 2.0}),
        part("right", "exact_match"),
        accuracy_part="right",
    )
    right = rewards.one(PROMPT, "answer", 0)
    wrong = rewards.one(PROMPT, "abc", 1)
    assert (dict(right.parts), right.total, right.correct) == ({"length": 12.0, "right": 1.0}, -5.0, True)
    assert (dict(wrong.parts), wrong.total, wrong.correct, wrong.error) == (
        {"length": 6.0, "right": 0.0},
        -3.0,
        False,
        "",
    )


def test_parts_that_cancel_out_have_a_total_of_0():
    rewards = scorer(*(part(f"p{number}", "verdict", weight=weight) for number, weight in enumerate((0.1, 0.2, -0.3))))
    assert rewards.one(PROMPT, "yes", 0).total == 0.0


def test_a_boolean_is_a_number():
    assert scorer(part("v", "verdict")).one(PROMPT, "yes", 0).total == 1.0


@pytest.mark.parametrize(("function", "reason"), FAILURES.items())
def test_a_failure_stops_the_run_and_names_everything(function, reason):
    rewards = scorer(part("fine", "length"), part("quality", function, timeout_seconds=limit(function)))
    with pytest.raises(DataError) as caught:
        rewards.one(PROMPT, "abc", 3)
    place = f"reward part 'quality' (function 'tests.rewards.broken_rewards:{function}') "
    assert tells(str(caught.value), place, "prompt 0/train/a.jsonl:5, sample 3: ", reason, "on_failure: mask")


@pytest.mark.parametrize(("function", "reason"), FAILURES.items())
def test_a_failure_may_flag_the_sample(function, reason):
    rewards = scorer(
        part("fine", "length"),
        part("quality", function, timeout_seconds=limit(function), on_failure="zero", weight=5.0),
    )
    score = rewards.one(PROMPT, "abc", 3)
    assert (dict(score.parts), score.total, score.error) == ({"fine": 3.0, "quality": 0.0}, 3.0, f"quality: {reason}")


@pytest.mark.parametrize(("function", "weight"), [("enormous", 1.0), ("enormous", 1e-280), ("nearly_enormous", 100.0)])
def test_a_reward_too_large_for_sums_is_a_failure(function, weight):
    rewards = scorer(part("fine", "length"), part("quality", function, weight=weight, on_failure="zero"))
    score = rewards.one(PROMPT, "abc", 0)
    value = "1e+300" if function == "enormous" else "1e+29"
    assert tells(score.error, f"quality: returned {value} ", f"weight {weight:g};", "1e+30")
    assert score.total == 3.0


def test_a_failure_has_the_same_message_in_every_process():
    """The message enters the experience digest, so it must not contain memory addresses."""
    score = scorer(part("quality", "addressed", on_failure="zero")).one(PROMPT, "abc", 0)
    assert score.error == "quality: raised TypeError: cannot judge <object object at 0x...>"


def test_an_unreachable_service_is_not_a_verdict(monkeypatch):
    monkeypatch.setattr("yatt_core.redoing.FIRST_SECONDS", 0.001)
    with pytest.raises(AwayError, match="what reward part 'judge' asks is away: the judge is away"):
        scorer(part("judge", "unavailable", on_failure="zero")).one(PROMPT, "abc", 0)


def test_the_time_limit_holds_in_any_thread():
    scores = []
    rewards = scorer(part("slow", "sleeping", on_failure="zero", timeout_seconds=0.2))
    thread = threading.Thread(target=lambda: scores.append(rewards.one(PROMPT, "abc")))
    thread.start()
    thread.join()
    assert scores[0].error == "slow: took longer than 0.2 s"


def test_a_swallowed_alarm_is_repeated(monkeypatch):
    monkeypatch.setattr("yatt_core.rewards.time_limit.REPEAT_SECONDS", 0.1)
    swallowed = []

    def stubborn():
        while True:
            try:
                time.sleep(5)
            except BaseException:
                swallowed.append(1)
                if len(swallowed) > 2:
                    raise

    with pytest.raises(TimeLimitReached):
        call_within(0.05, stubborn)
    assert len(swallowed) == 3


def test_a_timer_that_was_running_keeps_running():
    fired = []
    previous = signal.signal(signal.SIGALRM, lambda *_: fired.append(time.monotonic()))
    started = time.monotonic()
    outer = signal.setitimer(signal.ITIMER_REAL, 2.0)
    try:
        assert call_within(5.0, lambda: time.sleep(0.1) or 7) == 7
        with pytest.raises(TimeLimitReached):
            call_within(0.1, lambda: time.sleep(5))
        assert not fired and signal.getitimer(signal.ITIMER_REAL)[0] < 1.85, "the timer kept running meanwhile"
        while not fired and time.monotonic() < started + 30:
            time.sleep(0.05)
        assert len(fired) == 1 and fired[0] - started > 1.9
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)
        signal.signal(signal.SIGALRM, previous)


def test_a_tasks_own_score_over_a_mixture():
    prompts = [p for prompts in collect_prompts(run_spec(SPELL, SUM).data, 0).train for p in list(prompts)[:20]]
    graded = scorer(part("graded", "reasoning_gym"))
    exact = scorer(part("exact", "reasoning_gym", options={"exact": True}))
    assert {p.entry["task"] for p in prompts} == {"spell_backward", "chain_sum"}
    for prompt in prompts:
        assert graded.one(prompt, prompt.answer, 0).total == exact.one(prompt, prompt.answer, 0).total == 1.0
        assert exact.one(prompt, prompt.answer + "x", 0).total == 0.0
    near = graded.one(prompts[0], prompts[0].answer[:-1], 0)
    assert 0.0 < near.total < 1.0 and not near.correct
    assert exact.one(prompts[0], prompts[0].answer.lower(), 0).correct


@pytest.mark.parametrize("length", range(3, 11))
def test_an_exact_answer_is_stripped_and_nothing_follows_it(length):
    options = {"min_word_len": length, "max_word_len": length}
    (entry,) = entries("spell_backward", options, 0, 1)
    prompt = Prompt(0, 0, "p", entry["question"], entry["answer"], entry)
    exact = scorer(part("exact", "reasoning_gym", options={"exact": True}))
    tagged = scorer(part("exact", "reasoning_gym", options={"exact": True, "extract": "tag"}))
    assert len(prompt.answer) == length
    assert exact.one(prompt, f" {prompt.answer}\n", 0).total == 1.0
    for behind in ("s", " and so on", f" {prompt.answer}"):
        assert exact.one(prompt, prompt.answer + behind, 0).total == 0.0
    assert tagged.one(prompt, f"So: <answer> {prompt.answer} </answer>.", 0).total == 1.0
    assert tagged.one(prompt, prompt.answer, 0).total == 0.0
    assert exact.one(prompt, f"<think>Easy.</think>{prompt.answer}", 0).total == 1.0


@pytest.mark.parametrize(
    ("task", "response"),
    [("prime_factorization", "abc"), ("boxnet", "[1]"), ("game_of_life", "{}"), ("coin_flip", "1e999")],
)
def test_a_response_that_a_tasks_scoring_cannot_parse_scores_0_and_is_marked(task, response):
    """The default `on_failure: stop` concerns failures of the function, and a wrong answer is not such a failure."""
    (entry,) = entries(task, {}, 0, 1)
    prompt = Prompt(0, 0, "p", entry["question"], entry["answer"], entry)
    score = scorer(part("graded", "reasoning_gym")).one(prompt, response, 0)
    assert (score.total, score.correct) == (0.0, False)
    assert score.error.startswith("graded: cannot read the response: ") and task in score.error


def test_a_prompt_that_lacks_what_a_function_needs_is_named():
    with pytest.raises(DataError, match=r"0/train/a\.jsonl:5, sample 0: .*reasoning-gym entry"):
        scorer(part("exact", "reasoning_gym")).one(PROMPT, "x", 0)
    bare = Prompt(0, 0, "p", "text", None, {})
    with pytest.raises(DataError, match="no reference answer to compare with"):
        scorer(part("exact", "exact_match")).one(bare, "x", 0)


def test_virtual_scores_are_stable_and_spread():
    scores = [virtual_score(PROMPT, str(i)) for i in range(500)]
    assert scores == [virtual_score(PROMPT, str(i)) for i in range(500)]
    assert set(scores) == {i / 10 for i in range(10)}
    assert virtual_score(PROMPT, "12 7 93") == 0.9


JUDGE = {"kind": "generative", "name": "judge", "engine": {"kind": "virtual"}, "template": "{response}", "weight": 0.5}


def test_judgements_are_passed_in_and_weighted_like_other_parts():
    rewards = scorer(JUDGE, part("right", "exact_match", weight=2.0))
    score = rewards.one(PROMPT, "answer", 0, judged={"judge": PartValue(0.8)})
    assert (dict(score.parts), score.total, score.correct, score.error) == (
        {"judge": 0.8, "right": 1.0},
        2.4,
        True,
        "",
    )
    assert list(score.parts) == ["judge", "right"], "in the order of the spec"


def test_a_judge_may_decide_alone_while_the_rule_only_measures():
    rewards = scorer(part("right", "exact_match", weight=0.0), JUDGE)
    fooled = rewards.one(PROMPT, "wrong", 0, judged={"judge": PartValue(1.0)})
    assert (fooled.total, fooled.correct) == (0.5, False)


def test_evaluation_asks_no_judge():
    response = Scored(PROMPT, Completion.of_turns("answer", ["answer"], 1))
    (measured,) = scorer(JUDGE, part("right", "exact_match", weight=2.0)).score([response])
    assert (dict(measured.parts), measured.total, measured.correct) == ({"right": 1.0}, 2.0, True)


def test_a_judge_that_was_not_asked_is_never_a_zero():
    with pytest.raises(ValueError, match=r"\['judge'\] .*prompt 0/train/a\.jsonl:5, sample 0"):
        scorer(JUDGE, part("right", "exact_match")).one(PROMPT, "answer", 0)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (PartValue(0.0, "data: too long", "data"), "data: too long"),
        (PartValue(float("nan")), "returned nan, not a finite number"),
        (PartValue(1e31), "returned 1e+31 with weight 0.5; a reward may be at most ±1e+30, before and after weighting"),
    ],
)
def test_a_judge_that_failed_stops_zeroes_or_masks_the_sample(said, reason):
    with pytest.raises(DataError) as caught:
        stopping = scorer({**JUDGE, "on_failure": "stop"}, part("right", "exact_match"))
        stopping.one(PROMPT, "answer", 3, judged={"judge": said})
    place = "reward part 'judge' (judge of kind generative) "
    assert tells(str(caught.value), place, "prompt 0/train/a.jsonl:5, sample 3: ", reason, "on_failure: mask")
    flagged = scorer({**JUDGE, "on_failure": "zero"}, part("right", "exact_match"))
    score = flagged.one(PROMPT, "answer", 3, judged={"judge": said})
    assert (score.parts["judge"], score.total, score.error) == (0.0, 1.0, f"judge: {reason}")
    masked = scorer(JUDGE, part("right", "exact_match")).one(PROMPT, "answer", 3, judged={"judge": said})
    assert masked.missing == (f"judge/{said.cause or 'value'}",)
    assert (masked.total, masked.correct, masked.error) == (0.0, False, f"judge: {reason}")


def test_a_judge_that_gave_no_score_masks_the_sample_whatever_a_failure_does():
    silent = PartValue(0.0, "no score: the judgement was cut at its limit: 'Score: 1'", "cut", absent=True)
    for on_failure in ("stop", "mask", "zero"):
        rewards = scorer({**JUDGE, "on_failure": on_failure}, part("right", "exact_match"))
        score = rewards.one(PROMPT, "answer", 0, judged={"judge": silent})
        assert (score.total, score.correct, score.missing) == (0.0, False, ("judge/cut",))


def test_a_function_that_fails_may_mask_the_sample():
    rewards = scorer(part("fine", "length"), part("quality", "raising", on_failure="mask"))
    score = rewards.one(PROMPT, "abc", 0)
    assert (score.total, score.missing, score.parts["fine"]) == (0.0, ("quality/raised",), 3.0)


@pytest.mark.parametrize(
    ("given", "meant"),
    [({}, "stop"), ({"on_error": "stop"}, "stop"), ({"on_error": "zero"}, "zero"), ({"on_failure": "mask"}, "mask")],
)
def test_specs_of_earlier_versions_mean_what_they_meant(given, meant):
    assert FunctionPart.model_validate({"name": "own", "function": "exact_match", **given}).on_failure == meant
    programs = FunctionPart.model_validate({"name": "own", "function": "code_tests", **given})
    assert programs.on_failure == (meant if given else "mask")
    judge = RewardSpec.model_validate({"parts": [{**JUDGE, **given}]}).judges[0]
    assert judge.on_failure == (meant if given else "mask")


@pytest.mark.parametrize("given", [{"on_error": "mask"}, {"on_error": "stop", "on_failure": "stop"}])
def test_the_former_name_has_its_former_values_and_stands_alone(given):
    with pytest.raises(ValueError, match="on_error"):
        FunctionPart.model_validate({"name": "own", "function": "exact_match", **given})
