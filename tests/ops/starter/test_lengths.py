"""The lengths of first rows are those of the tokens that a run reads and learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.starter.lengths import longest_tokens
from ops.starter.looks import look_at_data, look_at_model
from ops.starter.understanding import understand
from tests.ops.starter.numbered_rows import NOTHING, many
from tests.ops.starter.sample_files import answered, user, write_jsonl

LONGEST = len("knot eleven?")
FRAME = len("<user\n") + len(">\n") + len("<assistant\n")
"""Tokens around a user's message: each letter is one, and each control token, here `<` and `>`."""


@pytest.mark.parametrize(
    ("row", "response"),
    [
        ({"prompt": "§?", "completion": "12345"}, 6),
        ({"prompt": "§?", "chosen": "12", "rejected": "1234567"}, 8),
        ({"prompt": "§?", "completion": "123", "label": (True, False)}, 4),
        ({"messages": [*answered("§?", "12"), *answered("why?", "3")]}, len("12>\n<user\nwhy?>\n<assistant\n3>")),
        ({"prompt": "§?", "answer": ("12", "4")}, 0),
    ],
)
def test_lengths_are_exact(tmp_path: Path, model: Callable[[str], Path], row: dict[str, Any], response: int) -> None:
    look = look_at_data(write_jsonl(tmp_path / "rows.jsonl", many(**row)))
    network = look_at_model(model("plain"))
    assert longest_tokens(understand([look], network, NOTHING), "run", network) == (LONGEST + FRAME, response)


def test_a_prompt_that_is_too_long_has_all_positions(tmp_path: Path, model: Callable[[str], Path]) -> None:
    rows = [*many(prompt=user("§?"), answer=("12", "4")), {"prompt": user("x" * 5_000), "answer": "3"}]
    look = look_at_data(write_jsonl(tmp_path / "rows.jsonl", rows))
    network = look_at_model(model("plain"))
    assert longest_tokens(understand([look], network, NOTHING), "run", network) == (network.positions, 0)
