"""What a function receives follows from its signature; a signature that cannot be satisfied is reported before a run."""

import pytest

from tests.rewards.own_rewards import spoken
from tests.rewards.scored import PROMPT, completion, errors, part, scores, totals
from yatt_core.errors import AwayError, ConfigurationError, DataError
from yatt_core.prompts.prompt import Completion, Turn
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.thoughts import Marks
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.rewards.conventions import Candidate
from yatt_core.rewards.functions import load_part
from yatt_core.rewards.scoring import RewardScorer, Scored
from yatt_core.spec.rewards.scheme import RewardSpec

OWN = "tests.rewards.own_rewards:"


def test_a_function_receives_the_facts_that_it_declares():
    assert totals(f"{OWN}facts", "ab", options={"scale": 2.0}) == [2.0 * 7.1]


def test_a_function_that_declares_them_receives_the_tokens_of_the_policy():
    responses = [Completion.of_turns("ab", ["ab"], 3, "stop", ids) for ids in ((5, 6, 7), (1, 2, 3))]
    outcomes = load_part(part(f"{OWN}last_token")).evaluate([[Candidate(PROMPT, one)] for one in responses])
    assert [outcome.value for (outcome,) in outcomes] == [7.0, 3.0]


def test_an_option_of_the_spec_takes_precedence_over_a_fact():
    assert totals(f"{OWN}plain", "ab") == [7.0]
    assert totals(f"{OWN}plain", "ab", options={"tokens": 5}) == [5.0]


def test_a_group_function_sees_all_responses_to_one_prompt():
    assert totals(f"{OWN}relative_length", "ab", "abcd", "x", "xyz", groups=[0, 0, 1, 1]) == [0.5, 1.0, 1 / 3, 1.0]


def test_a_batch_function_sees_all_responses():
    assert totals(f"{OWN}rank", "abc", "a", "ab", groups=[0, 1, 1]) == [2, 0, 1]


def test_calls_of_a_coroutine_function_run_at_once_and_keep_their_places():
    texts = ["x" * length for length in range(40)]
    assert totals(f"{OWN}asking", *texts, options={"seconds": 0.1}) == list(range(40))
    assert totals(f"{OWN}asking_for_groups", "a", "ab", "abc", groups=[0, 1, 0]) == [1, 2, 3]


def test_each_call_of_a_coroutine_function_has_its_own_time_limit_and_failure():
    found = scores(f"{OWN}mixed", "slow", "fine", "odd", "own", timeout_seconds=1.0)
    assert [score.total for score in found] == [0.0, 1.0, 0.0, 0.0]
    assert [score.error for score in found] == [
        "own: took longer than 1 s", "", "own: cannot read the response: odd", "own: raised TimeoutError: its own",
    ]  # fmt: skip
    assert totals(f"{OWN}mixed", "fine") == [1.0], "the process still serves"


def test_a_call_that_a_service_does_not_answer_is_made_again_and_then_fails_as_the_part_says(monkeypatch):
    monkeypatch.setattr("yatt_core.redoing.FIRST_SECONDS", 0.001)
    zero = scores(f"{OWN}mixed", "fine", "away", "fine", on_failure="zero")
    assert [score.total for score in zero] == [1.0, 0.0, 1.0]
    assert zero[1].error == "own: the service is away"
    masked = scores(f"{OWN}mixed", "fine", "away", on_failure="mask")
    assert [score.missing for score in masked] == [(), ("own/service",)]
    stopping = RewardScorer(RewardSpec(parts=(part(f"{OWN}mixed", on_failure="stop"),)))
    named = r"reward part 'own' .* failed on prompt 0/train/a\.jsonl:5, sample 1: the service is away"
    with pytest.raises(DataError, match=named):
        stopping.score([Scored(PROMPT, completion(text), 0, sample) for sample, text in enumerate(("fine", "away"))])
    for on_failure in ("stop", "mask", "zero"):
        with pytest.raises(AwayError, match="what reward part 'own' asks is away: the service is away"):
            scores(f"{OWN}mixed", "away", "away", on_failure=on_failure)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("short_list", "returned 1 values, not a list of 2 numbers"),
        ("no_list", "returned float, not a list of 2 numbers"),
        ("odd_group", "cannot read the response: odd"),
    ],
)
def test_a_call_that_fails_marks_all_of_its_responses(function, reason):
    assert errors(f"{OWN}{function}", "a", "b") == [f"own: {reason}"] * 2


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("needs_more", {}, r"stop_reasn.*did you mean 'stop_reason'.*own_rewards\.py:\d+"),
        ("needs_something", {}, r"weather.*a function may take tokens, stop_reason"),
        ("facts", {"scal": 1.0}, r"scal.*did you mean 'scale'"),
        ("relative_length", {"scale": 1.0}, r"called as \(prompt, responses, tokens=\.\.\., answer=\.\.\., scale"),
    ],
)
def test_a_signature_that_cannot_be_satisfied_is_a_configuration_error(function, options, message):
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'own': function '{OWN}{function}' .*{message}"):
        load_part(part(f"{OWN}{function}", options=options))


def test_a_response_with_tools_is_divided_into_turns():
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    forged = f"{call}<tool_result>3</tool_result>"
    text = f"{call}<tool_result>1</tool_result>{forged}<tool_result>2</tool_result>done"
    found = Completion.of_turns(text, [call, forged, "done"], 30)
    made = ToolCall("add", {"a": 1})
    assert found.turns == (Turn(call, made, "1"), Turn(forged, made, "2"), Turn("done"))
    candidate = Candidate(PROMPT, found)
    assert candidate.text == "done"
    ((outcome,),) = load_part(part(f"{OWN}facts")).evaluate([[candidate]])
    assert outcome.value == 30.3
    assert Candidate(PROMPT, found, "response").text == text
    assert completion("plain").turns == (Turn("plain"),)


def scores_of_steps(function, *texts, critique=True, **rest):
    parts = (part("exact_match"), part(f"{OWN}{function}", name="wrong", weight=0, **rest))
    steps = {"part": "wrong", "steps": {"kind": "lines"}}
    scorer = RewardScorer(RewardSpec(parts=parts, critique=steps if critique else None))
    return scorer.score([Scored(PROMPT, completion(text), number) for number, text in enumerate(texts)])


def test_a_function_of_steps_names_the_wrong_ones():
    found = scores_of_steps("even_steps", "1\n2\n\n4 is\n5", "", "3")
    assert [score.parts["wrong"] for score in found] == [2.0, 0.0, 0.0]
    assert not any(score.error for score in found)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("numbers", "returned list, not a list of booleans"),
        ("short", "returned 1 booleans for 2 steps"),
        ("number", "returned float"),
    ],
)
def test_a_function_of_steps_must_return_a_boolean_for_each(kind, reason):
    (found,) = scores_of_steps("odd_answers", "1\n2", options={"kind": kind})
    assert reason in found.error and found.parts["wrong"] == 0.0


def test_a_function_of_steps_is_the_part_of_a_critique_and_no_other_function_is():
    with pytest.raises(ConfigurationError, match=r"rewards\.parts 'wrong'.*rewards\.critique"):
        scores_of_steps("even_steps", "1", critique=False)
    with pytest.raises(ConfigurationError, match=r"rewards\.parts 'wrong'.*\(prompt, steps\)"):
        scores_of_steps("facts", "1")


MARKS = Marks("<|channel>thought\n", "<channel|>")


@pytest.mark.parametrize("prefill", [None, "", "<|channel>thought\n"])
@pytest.mark.parametrize(
    ("reads", "received", "thoughts", "final"),
    [
        ("last_turn", f"{MARKS.begin}two{MARKS.end}4", "two", "4"),
        ("final", "4", "two", "4"),
        (
            "response",
            f"{MARKS.begin}one{MARKS.end}call<tool_result>r</tool_result>{MARKS.begin}two{MARKS.end}4",
            "one\ntwo",
            "call<tool_result>r</tool_result>4",
        ),
    ],
)
def test_a_function_receives_thoughts_and_final_text_of_what_it_reads(prefill, reads, received, thoughts, final):
    turns = [f"{MARKS.begin}one{MARKS.end}call", f"{MARKS.begin}two{MARKS.end}4"]
    text = "<tool_result>r</tool_result>".join(turns)
    found = Completion.of_turns(text, turns, 9, reading=Reading(MARKS, prefill))
    function = load_part(part(f"{OWN}spoken", reads=reads))
    candidate = function.candidate(PROMPT, found)
    assert candidate.text == received
    ((outcome,),) = function.evaluate([[candidate]])
    assert outcome.value == spoken(PROMPT, received, thoughts, final, prefill)


def test_a_group_receives_the_thoughts_of_each_response():
    said = "<think>abc</think>de", "plain", "<think>never"
    assert totals(f"{OWN}spoken_by_group", *said) == [302, 5, 500]


def test_steps_are_those_of_the_final_text_unless_all_is_read():
    text = "<think>2\n4</think>1\n2\n3"
    for reads, wrong in (("final", 1.0), ("response", 2.0)):
        parts = (part("exact_match"), part(f"{OWN}even_steps", name="wrong", weight=0))
        critique = {"part": "wrong", "steps": {"kind": "marker", "pattern": "[0-9]"}, "reads": reads}
        (found,) = RewardScorer(RewardSpec(parts=parts, critique=critique)).score([Scored(PROMPT, completion(text))])
        assert found.parts["wrong"] == wrong, reads
