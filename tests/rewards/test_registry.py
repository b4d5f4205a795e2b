"""Reward functions are found by entry point or dotted name; unusable ones are reported before the run."""

import pytest

from tests.rewards.broken_rewards import length
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.stream import Prompt
from yatt_core.rewards.registry import resolve
from yatt_core.spec.rewards.scheme import FunctionPart

PROMPT = Prompt(0, 0, "p", "text", "answer", {})


def part(function, **options):
    return FunctionPart(name="quality", function=function, options=options)


def test_entry_points_and_dotted_names():
    assert resolve(part("exact_match"))(PROMPT, "answer") == 1.0
    assert resolve(part("exact_match", case_sensitive=False))(PROMPT, "Answer ") == 1.0
    assert resolve(part("tests.rewards.broken_rewards:length", scale=2.0))(PROMPT, "abc") == 2 * length(PROMPT, "abc")
    for name in ("reasoning_gym", "virtual_score"):
        assert callable(resolve(part(name)))


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("exact_mach", {}, r"'exact_mach' .*'yatt\.rewards'; .*'exact_match'"),
        ("zzz", {}, "known: exact_match, reasoning_gym, virtual_score"),
        ("tests.rewards.broken_rewards:lenght", {}, "has no 'lenght'; did you mean 'length'"),
        ("tests.rewards.no_such_module:f", {}, "importing tests.rewards.no_such_module failed: ModuleNotFoundError"),
        ("tests.rewards.leaving_module:f", {}, "importing tests.rewards.leaving_module failed: SystemExit: 0"),
        ("tests.rewards.broken_rewards:CONSTANT", {}, "CONSTANT'? is float"),
        ("tests.rewards.broken_rewards:", {}, "write package.module:function"),
        (
            "exact_match",
            {"case": True},
            r"called as \(prompt, response, case=\.\.\.\): .*unexpected keyword argument 'case'",
        ),
        ("builtins:input", {}, "cannot be called as"),
    ],
)
def test_an_unusable_function_is_a_configuration_error(function, options, message):
    with pytest.raises(ConfigurationError, match=rf"rewards\.parts 'quality': function .*{message}"):
        resolve(part(function, **options))
