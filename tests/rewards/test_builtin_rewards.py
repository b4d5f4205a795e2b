"""The included rewards: extraction, their formulas, their libraries' verdicts, and what hostile responses do to them."""

import time

import pytest

from tests.rewards import scored
from tests.rewards.scored import errors, part, scores, totals
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards import process
from yatt_core.rewards.conventions import Candidate
from yatt_core.rewards.functions import load_part

SECONDS = 3.0
"""Far more than any of these calls takes, far less than one of quadratic time would."""


def given(monkeypatch, answer):
    monkeypatch.setattr(scored, "PROMPT", Prompt(0, 0, "p", "q", answer, {}))


def of_length(function, tokens, **options):
    completion = Completion.of_turns("text", ["text"], tokens)
    ((outcome,),) = load_part(part(function, options=options)).evaluate([[Candidate(scored.PROMPT, completion)]])
    return outcome.value


@pytest.mark.parametrize(
    ("options", "response", "answer"),
    [
        ({}, " 42 \n", "42"),
        ({"extract": "tag"}, "<answer>1</answer> no: <answer> 42 </answer>.", "42"),
        ({"extract": "tag", "tag": "result"}, "<answer>1</answer><result>42</result>", "42"),
        ({"extract": "boxed"}, r"\boxed{1} but \boxed{\frac{4}{2} + \{4\} }", r"\frac{4}{2} + \{4\}"),
        ({"extract": "last_number"}, "from 7 to 1,234.50 or +3,000 dollars.", "3000"),
        ({"extract": "last_number"}, "minus -1,234.5, then .", "-1234.5"),
        ({"extract": "last_number", "extract_reference": "last_number"}, "it is 42", "6 * 7 = 42 #### 42"),
        ({"extract": "pattern", "pattern": r"(?s).*#### (?P<answer>[0-9]+)"}, "#### 1\n#### 42", "42"),
    ],
)
def test_the_answer_is_extracted(monkeypatch, options, response, answer):
    given(monkeypatch, answer)
    assert totals("exact_match", response, response + "x" if not options else "nothing", options=options) == [1.0, 0.0]


@pytest.mark.parametrize("extract", ["tag", "boxed", "last_number", "pattern"])
def test_a_response_without_an_answer_is_wrong_and_a_reference_without_one_fails(monkeypatch, extract):
    options = {"extract": extract, "extract_reference": extract}
    options |= {"pattern": "x(?P<answer>y)"} if extract == "pattern" else {}
    given(monkeypatch, "none")
    assert "DataError: the reference answer has no" in errors("exact_match", "any", options=options)[0]


HOSTILE = [
    "<answer>" * 125_000,
    r"\boxed{" * 140_000,
    "9" * 1_000_000,
    "1,000" * 200_000,
    "{}" * 500_000,
    "a" * 1_000_000 + "!",
]


@pytest.mark.parametrize("extract", ["tag", "boxed", "last_number", "pattern"])
def test_a_million_hostile_characters_are_read_in_linear_time(monkeypatch, extract):
    given(monkeypatch, "1")
    options = {"extract": extract} | ({"pattern": "(?P<answer>(?:a+)+)$"} if extract == "pattern" else {})
    started = time.process_time()
    assert len(errors("exact_match", *HOSTILE, options=options)) == len(HOSTILE)
    assert time.process_time() - started < SECONDS * len(HOSTILE)


def test_a_format_is_a_sequence_of_tags_or_a_pattern():
    tags = {"tags": ["think", "answer"]}
    good = "<think>a\nb</think>\n<answer>c</answer> "
    swapped = "<answer>c</answer><think>a</think>"
    twice = "<think>a<think></think><answer>c</answer>"
    assert totals("format", good, swapped, good + "more", "x" + good, twice, "", options=tags) == [1, 0, 0, 0, 0, 0]
    assert totals("format", "yes", "yes ", "no\n", options={"pattern": "yes|no"}) == [1, 0, 0]


def test_the_soft_overlong_penalty_is_that_of_dapo():
    """arXiv 2503.14476, equation 13, with L_max 20 and L_cache 4."""
    lengths = (1, 16, 17, 18, 20, 21, 90)
    expected = [0.0 if n <= 16 else (16 - n) / 4 if n <= 20 else -1.0 for n in lengths]
    assert [of_length("overlong_penalty", n, maximum=20, buffer=4) for n in lengths] == expected
    assert expected[2:5] == [-0.25, -0.5, -1.0]


def test_a_length_outside_its_range_loses_credit_gradually():
    lengths = (0, 7, 8, 10, 20, 21, 22, 24, 99)
    values = [of_length("length_range", n, minimum=10, maximum=20, slack=3) for n in lengths]
    assert values == [0.0, 0.25, 0.5, 1.0, 1.0, 0.75, 0.5, 0.0, 0.0]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
}


def test_json_satisfies_a_schema_or_not():
    texts = ['{"name": "a", "sizes": [1]}', '{"name": "a", "sizes": [1.5]}', "{}", "no json", '```{"name": ""}```']
    assert totals("json_schema", *texts, options={"schema": SCHEMA}) == [1, 0, 0, 0, 0]
    options = {"schema": SCHEMA, "extract": "pattern", "pattern": "(?s)```(?P<answer>.*)```"}
    assert totals("json_schema", *texts, options=options) == [0, 0, 0, 0, 1]


def test_hostile_json_scores_0_and_is_marked():
    found = errors("json_schema", "[" * 1_000_000, "9" * 1_000_000, options={"schema": {"type": "array"}})
    assert found == ["own: cannot read the response: its JSON is nested too deeply", ""]
    remote = {"$ref": "http://127.0.0.1:9/schema.json"}
    assert "reference that cannot be resolved" in errors("json_schema", "{}", options={"schema": remote})[0]


@pytest.mark.parametrize(
    ("answer", "options", "right", "wrong"),
    [
        ("1/2", {"extract": "boxed"}, r"thus \boxed{\frac{1}{2}}", r"thus \boxed{\frac{1}{3}}"),
        (r"\frac{1}{2}", {"extract": "tag"}, "<answer>0.5</answer>", "<answer>0.51</answer>"),
        ("1000", {}, "The answer is $1,000$.", "The answer is $100$."),
        ("$(x+1)^2$", {"extract": "tag"}, "<answer>x^2 + 2x + 1</answer>", "<answer>x^2 + 1</answer>"),
        ("$[1, 2)$", {"extract": "boxed"}, r"\boxed{[1,2)}", r"\boxed{[1,2]}"),
        ("ACD", {"extract": "boxed"}, r"\boxed{\text{ACD}}", r"\boxed{CDA}"),
        ("east", {}, "so $East$", "so $seat$"),
        ("no solution", {"extract": "boxed"}, r"\boxed{\text{No solution}}", r"\boxed{on solution}"),
        ("xyz", {"extract": "boxed"}, r"\boxed{z y x}", r"\boxed{zyx^2}"),
        ("infinity", {"extract": "boxed"}, r"\boxed{\infty}", r"\boxed{-\infty}"),
        ("1011_2", {"extract": "boxed"}, r"\boxed{1011_{2}}", r"\boxed{1011_3}"),
        ("$52_{8}$", {}, "It is $(52)_8$.", "It is $52_{9}$."),
        ("52_8", {}, "52_8", "52_9"),
    ],
)
def test_mathematically_equal_answers_are_right(monkeypatch, answer, options, right, wrong):
    given(monkeypatch, answer)
    assert totals("math_equal", right, wrong, "", options=options) == [1, 0, 0]


def test_an_answer_that_takes_forever_scores_0_and_the_run_goes_on(monkeypatch):
    """The power is computed in C, where no interrupt reaches it: its process is ended."""
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    given(monkeypatch, "3")
    texts = [r"\boxed{3}", r"\boxed{2^{10^{10}}}", r"\boxed{" + "1+" * 20_000 + "1}", r"\boxed{3}"]
    rest = {"options": {"extract": "boxed"}, "timeout_seconds": 2.0, "on_failure": "stop"}
    found = scores("math_equal", *texts, **rest)
    assert [score.total for score in found] == [1, 0, 0, 1]
    slow, long = (score.error for score in found[1:3])
    assert slow == "own: cannot read the response: took longer than 2 s"
    assert "cannot read the response: its answer has 40" in long


def test_a_call_that_blames_the_response_never_stops_the_run(monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.2)
    slow = errors("tests.rewards.rude_rewards:stubborn_reader", "rude", timeout_seconds=0.1, on_failure="stop")
    assert slow == ["own: cannot read the response: took longer than 0.1 s"]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("exact_match", {"extarct": "tag"}, r"options\.extarct: unknown option; did you mean 'extract'\?"),
        ("exact_match", {"extract": "tags"}, r"options\.extract: Input should be 'whole', 'tag'"),
        ("exact_match", {"extract": "pattern"}, r"pattern is required with extract: pattern"),
        ("exact_match", {"extract": "pattern", "pattern": "(?P<answer>"}, r"options\.pattern: is not an RE2"),
        ("exact_match", {"extract": "pattern", "pattern": "x"}, r"needs a group \(\?P<answer>"),
        ("format", {}, "expected either tags"),
        ("format", {"pattern": "("}, "is not an RE2"),
        ("length_range", {"minimum": 9, "maximum": 3}, "minimum 9 is above maximum 3"),
        ("overlong_penalty", {"maximum": 9}, r"options\.buffer: Field required"),
        ("overlong_penalty", {"maximum": 9, "buffer": 10}, "buffer 10 is larger"),
        ("json_schema", {}, r"options\.schema: Field required"),
        ("json_schema", {"schema": {"type": "number?"}}, "is not a JSON schema"),
        ("math_equal", {"decimal": 3}, "did you mean 'decimals'"),
    ],
)
def test_a_mistake_in_the_options_is_a_configuration_error(function, options, message):
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'own': function '{function}': .*{message}"):
        load_part(part(function, options=options))
