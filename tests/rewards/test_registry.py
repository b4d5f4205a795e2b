"""Reward functions are found by entry point or dotted name; unusable ones are reported before the run."""

import pytest

from tests.rewards.broken_rewards import length
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards.conventions import Candidate
from yatt_core.rewards.functions import load_part
from yatt_core.spec.rewards.scheme import FunctionPart

PROMPT = Prompt(0, 0, "p", "text", "answer", {})


def part(function, **options):
    return FunctionPart(name="quality", function=function, options=options)


def value(part, response):
    ((outcome,),) = load_part(part).evaluate([[Candidate(PROMPT, Completion.of_turns(response, [response], 1))]])
    return outcome.value


def test_entry_points_and_dotted_names():
    assert value(part("exact_match"), "answer") == 1.0
    assert value(part("exact_match", case_sensitive=False), "Answer ") == 1.0
    assert value(part("tests.rewards.broken_rewards:length", scale=2.0), "abc") == 2 * length(PROMPT, "abc")
    for name in ("reasoning_gym", "virtual_score"):
        assert load_part(part(name)).unit == "response"


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("exact_mach", {}, r"'exact_mach' .*'yatt\.rewards'; .*'exact_match'"),
        ("zzz", {}, "known: code_tests, exact_match, format, json_schema, .*virtual_score"),
        ("tests.rewards.broken_rewards:lenght", {}, "has no 'lenght'; did you mean 'length'"),
        ("tests.rewards.no_such_module:f", {}, "importing tests.rewards.no_such_module failed: ModuleNotFoundError"),
        ("tests.rewards.leaving_module:f", {}, "importing tests.rewards.leaving_module failed: SystemExit: 0"),
        ("tests.rewards.broken_rewards:CONSTANT", {}, "CONSTANT'? is float"),
        ("tests.rewards.broken_rewards:", {}, "write package.module:function"),
        (
            "exact_match",
            {"case": True},
            r"options\.case: unknown option; known: case_sensitive, extract",
        ),
        ("builtins:input", {}, "cannot be called as"),
    ],
)
def test_an_unusable_function_is_a_configuration_error(function, options, message):
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'quality': function .*{message}"):
        load_part(part(function, **options))
