"""Runs the tests of a few rows on the rows' own solutions: tests that these do not pass may be tests that nothing passes.

Consumes a spec whose reward runs tests. Produces a warning for each part with the number and the first of such rows. Rows without
a solution are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from yatt_core.datasets.sources import first_prompts
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.rewards.functions import PartFunction, load_part
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.scheme import PROGRAMS

COLUMNS = ("canonical_solution", "reference_solution", "solution", "solutions", "code")
"""Keys under which data sets of programs have solutions; the first that a row has is read."""
ROWS_PER_SOURCE = 8
SOLUTIONS = 2
"""Solutions of a row of which one has to pass."""


def try_solutions(spec: RunSpec) -> Iterator[str]:
    """Yields a line for each part whose tests some of the first rows' own solutions do not pass."""
    parts = [part for part in spec.rewards.functions if part.function == PROGRAMS]
    if not parts:
        return
    prompts = [(prompt, *_solutions(prompt)) for prompt in first_prompts(spec.data, spec.seed, ROWS_PER_SOURCE)]
    solved = [(prompt, column, solutions) for prompt, column, solutions in prompts if solutions]
    for part in parts:
        function = load_part(part)
        failing = [
            (prompt, column)
            for prompt, column, solutions in solved
            if not any(
                _passes(function, prompt, text) for solution in solutions for text in _responses(prompt, solution)
            )
        ]
        if failing:
            prompt, column = failing[0]
            yield (
                f"rewards.parts {part.name!r}: the row's own solution does not pass the tests in {len(failing)} of {len(solved)} "
                f"rows that were tried, the first is {prompt.prompt_id} (key {column!r}): responses may have no way to score; "
                "correct the tests, the options (entry_point, setup, prefix) or the rows"
            )


def _solutions(prompt: Prompt) -> tuple[str, list[str]]:
    """Returns the key of a row's solutions and the first of them; none if the row has none."""
    for column in COLUMNS:
        found = [text for text in _texts(prompt.entry.get(column)) if text.strip()]
        if found:
            return column, found[:SOLUTIONS]
    return "", []


def _texts(value: Any) -> list[str]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return [value]
    if isinstance(value, str):
        return [value]
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _responses(prompt: Prompt, solution: str) -> Iterator[str]:
    """Yields responses that give a solution: as it is, in a fence, and as the continuation of the prompt."""
    yield solution
    if "```" not in solution:
        yield f"```python\n{solution}\n```"
        yield f"```python\n{prompt.text}{solution}\n```"


def _passes(function: PartFunction, prompt: Prompt, response: str) -> bool:
    """Returns whether a response passes all tests; True if that is not known."""
    completion = Completion.of_turns(response, [response], 0)
    ((outcome,),) = function.evaluate_once([[function.candidate(prompt, completion)]])
    return outcome.failed or outcome.value >= 1.0
