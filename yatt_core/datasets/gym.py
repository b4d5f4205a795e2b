"""Tasks of the reasoning-gym package, and YATT's own in its registry: their entries as plain JSON rows, and their own scoring.

Consumes a task's name and options. Produces rows (`question`, `answer`, `metadata`, `task`, `options`) that
survive a round trip through JSON, and scores of responses to them. Rows preserve values that JSON lacks (tuples,
mappings with keys that are not strings), because several tasks compare a response with such a value.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from yatt_core.datasets.gym_tasks import all_tasks, one_task
from yatt_core.digests import canonical_json
from yatt_core.errors import ConfigurationError, DataError, UnreadableResponseError
from yatt_core.installed import failure_text

OWN_OPTIONS = frozenset({"seed", "size"})
EVALUATES_RESPONSES = frozenset(
    {
        "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24",
        "simple_integration", "spiral_matrix", "string_insertion",
    }
)  # fmt: skip
"""Tasks whose scoring evaluates a response as Python; their entries are prompts for other reward functions only."""
TUPLE_TAG = "__tuple__"
MAPPING_TAG = "__mapping__"


def create_task(task: str, options: Mapping[str, Any], seed: int = 0, size: int = 1) -> Any:
    """Returns a reasoning-gym dataset whose entry i is drawn from Random(seed + i).

    Raises `ConfigurationError` for an unknown task or option (naming the closest ones) and for options that the
    task rejects.
    """
    factory = one_task(task) or all_tasks()
    tasks = factory.DATASETS
    if task not in tasks:
        raise ConfigurationError(f"data.sources: reasoning-gym has no task {task!r}; {_nearest(task, tasks)}")
    known = {field.name for field in dataclasses.fields(tasks[task][1])} - OWN_OPTIONS
    for option in options:
        if option in OWN_OPTIONS:
            raise ConfigurationError(f"data.sources: task {task!r}: option {option!r} is set by the run; leave it out")
        if option not in known:
            raise ConfigurationError(f"data.sources: task {task!r} has no option {option!r}; {_nearest(option, known)}")
    try:
        return factory.create_dataset(task, seed=seed, size=size, **options)
    except (AssertionError, ValueError, TypeError, KeyError, AttributeError) as error:
        given = canonical_json(dict(options))
        raise ConfigurationError(f"data.sources: task {task!r} rejects the options {given}: {error}") from error


def entries(task: str, options: Mapping[str, Any], seed: int, size: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of a task.

    Raises `DataError` for an entry that the task cannot create or JSON cannot represent.
    """
    dataset = create_task(task, options, seed, size)
    for index in range(size):
        try:
            row = {**dataset[index], "task": task, "options": dict(options)}
            packed = json.loads(canonical_json(_pack(row)))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"reasoning-gym task {task!r}, seed {seed}: entry {index} failed: {error}") from error
        yield packed


def evaluation_refused(task: str) -> str:
    """Returns why responses to one of `EVALUATES_RESPONSES` are not scored by it, and what scores them instead."""
    return (
        f"the scoring of reasoning-gym's task {task!r} evaluates a response as Python code, which YATT does not do; use "
        "math_equal or exact_match, which compare the response with the task's answer, or a function of your own"
    )


def score(response: str, row: Mapping[str, Any]) -> float:
    """Returns the task's own score of a response, usually between 0 and 1.

    Raises `DataError` for a row that is not a reasoning-gym entry or is one of a task that evaluates responses, and
    `UnreadableResponseError` if the task's scoring fails: several tasks parse whatever a model wrote and raise for what
    they do not expect.
    """
    if not {"task", "options", "question", "metadata"} <= row.keys():
        raise DataError("the prompt is not a reasoning-gym entry; use another reward function")
    metadata = row["metadata"]
    # A task made of others asks the one that an entry names.
    asked = {str(row["task"]), str(metadata.get("source_dataset") if isinstance(metadata, Mapping) else "")}
    for name in sorted(asked & EVALUATES_RESPONSES):
        raise DataError(evaluation_refused(name))
    task = _task_for_scores(row["task"], canonical_json(row["options"]))
    entry = _unpack(dict(row))
    try:
        value = float(task.score_answer(answer=response, entry=entry))
    except (ImportError, MemoryError, OSError):  # of this machine, not of the response
        raise
    except (Exception, SystemExit) as error:  # third-party code that parses the response can raise anything
        raise UnreadableResponseError(f"task {row['task']!r} raised {failure_text(error)}") from error
    if not math.isfinite(value):
        raise UnreadableResponseError(f"task {row['task']!r} scored it {value}")
    return value


@functools.lru_cache(maxsize=256)
def _task_for_scores(task: str, options: str) -> Any:
    return create_task(task, json.loads(options))


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(sorted(known))}"


def _pack(value: Any) -> Any:
    """Replaces tuples, and mappings with keys that are not strings, with tagged values."""
    if isinstance(value, tuple):
        return {TUPLE_TAG: [_pack(item) for item in value]}
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _pack(item) for key, item in value.items()}
        return {MAPPING_TAG: [[_pack(key), _pack(item)] for key, item in value.items()]}
    return value


def _unpack(value: Any) -> Any:
    """Reverses `_pack`."""
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {TUPLE_TAG}:
            return tuple(_unpack(item) for item in value[TUPLE_TAG])
        if value.keys() == {MAPPING_TAG}:
            return {_unpack(key): _unpack(item) for key, item in value[MAPPING_TAG]}
        return {key: _unpack(item) for key, item in value.items()}
    return value
