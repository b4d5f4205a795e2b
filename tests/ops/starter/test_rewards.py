"""The reward file that `yatt init` writes for rows with answers."""

from __future__ import annotations

import pytest

from ops.starter.rewards.with_answers import score
from yatt_core.prompts.stream import Prompt


@pytest.mark.parametrize(
    ("answer", "response", "expected"),
    [
        ("14", "7 + 7 = 14", 1.0),
        ("14", "It is 14.", 1.0),
        ("1400", "The answer is 1,400 in 2024 <answer> 1,400 </answer> or so", 1.0),
        ("14", r"so \boxed{14}, as 2 + 2 = 4", 1.0),
        ("14", "13", 0.1),
        ("14", "", 0.0),
        ("14", "no idea", 0.0),
        ("Paris", "Let me think.\nparis.", 1.0),
        ("Paris", "Rome", 0.1),
        ("7 + 65 is 72.\n#### 72", "so it is 72", 1.0),
        (r"so $\boxed{\frac{1}{2}}$", r"\boxed{\frac{1}{2}}", 1.0),
        (r"so $\boxed{\frac{1}{2}}$", r"\boxed{\frac{1}{3}}", 0.1),
    ],
)
def test_the_final_answer_is_compared(answer: str, response: str, expected: float) -> None:
    assert score(Prompt(0, 0, "0/1", "?", answer, {}), response) == expected
