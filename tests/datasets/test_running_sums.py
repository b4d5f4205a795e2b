"""The task `running_sums`: its answers are right step by step, and the rule finds exactly the steps that do not follow."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from yatt_core.datasets import gym
from yatt_core.datasets.running_sums import RunningSumsConfig, is_random_pair
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.builtin import running_sums_steps

OPTIONS = {"numbers": 4, "modulus": 10}


def prompt_of(numbers, modulus=10):
    return Prompt(0, 0, "p", "", None, {"metadata": {"numbers": numbers, "modulus": modulus}})


def test_entries_are_drawn_by_seed_and_their_answers_are_right():
    rows = list(gym.entries("running_sums", OPTIONS, 7, 20))
    assert (
        rows == list(gym.entries("running_sums", OPTIONS, 7, 20)) != list(gym.entries("running_sums", OPTIONS, 9, 20))
    )
    for row in rows:
        numbers = [int(text) for text in row["question"].partition(": ")[2].split()]
        assert row["metadata"]["numbers"] == numbers and len(numbers) == 4
        assert [int(line) for line in row["answer"].split("\n")] == [sum(numbers[: n + 1]) % 10 for n in range(4)]
        assert gym.score(row["answer"], row) == 1.0
        prompt = prompt_of(numbers)
        assert running_sums_steps(prompt, row["answer"].splitlines(keepends=True)) == [False] * 4
    assert len({row["question"] for row in rows}) > 15


def test_only_the_last_line_makes_a_response_right():
    (row,) = gym.entries("running_sums", OPTIONS, 7, 1)
    *_, last = row["answer"].split("\n")
    assert gym.score(f"0\n0\n{last}\n", row) == 1.0
    for response in ("", "\n", f"{last}\n{(int(last) + 1) % 10}", f"{last}0", f"-{last}"):
        assert gym.score(response, row) == 0.0


def test_answers_are_random_after_the_same_pairs_in_all_entries_and_scores_are_not():
    options = {"numbers": 8, "modulus": 10, "random_pairs": 0.3}
    rows = list(gym.entries("running_sums", options, 7, 2000))
    plain = list(gym.entries("running_sums", {**options, "random_pairs": 0.0}, 7, 2000))
    assert [row["question"] for row in rows] == [row["question"] for row in plain]
    lines = Counter[tuple[int, int, int]]()
    for row in rows:
        answer = list(map(int, row["answer"].split("\n")))
        numbers = row["metadata"]["numbers"]
        lines.update(zip([0, *answer[:-1]], numbers, answer, strict=True))
        assert gym.score(row["answer"], row) == (sum(numbers) % 10 == answer[-1])
        assert gym.score(str(sum(numbers) % 10), row) == 1.0
    pairs = {(before, number) for before, number, _ in lines}
    unknown = {pair for pair in pairs if is_random_pair(RunningSumsConfig(random_pairs=0.3), *pair)}
    assert len(pairs) == 100 and len(unknown) == 31
    for before, number in pairs:
        written = {line: lines[before, number, line] for line in range(10)}
        total = sum(written.values())
        right = written[(before + number) % 10]
        if (before, number) in unknown:
            assert all(0.02 * total < count < 0.25 * total for count in written.values())
        else:
            assert right == total
    few = {pair for pair in pairs if is_random_pair(RunningSumsConfig(random_pairs=0.1), *pair)}
    assert few < unknown, "a larger fraction keeps the pairs of a smaller one"
    assert all(is_random_pair(RunningSumsConfig(random_pairs=1.0), *pair) for pair in pairs)


@pytest.mark.parametrize(
    "options", [{"numbers": 0}, {"modulus": 1}, {"modulus": "x"}, {"random_pairs": 1.5}, {"random_pairs": "x"}]
)
def test_options_that_make_no_task_are_refused(options):
    with pytest.raises(ConfigurationError, match="running_sums"):
        gym.create_task("running_sums", options)


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        (["7\n", "5\n", "8"], [False, False, False]),
        (["7\n", "6\n", "9"], [False, True, False]),
        (["3\n", "1\n", "0"], [True, False, True]),
        (["7\n", "x\n", "8"], [False, True, False]),
        (["7\n", "x\n", "9"], [False, True, True]),
        (["7\n", "5\n", "8\n", "8"], [False, False, False, True]),
        (["7", "05"], [False, True]),
        (["\N{FULLWIDTH DIGIT SEVEN}"], [True]),
        ([""], [True]),
        (["9" * 5000, "5\n", "8"], [True, False, False]),
        (["7\n", "5"], [False, True]),
        (["7 5 8"], [True]),
    ],
)
def test_which_steps_are_wrong(steps, wrong):
    assert running_sums_steps(prompt_of([7, 8, 3]), steps) == wrong


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_step_is_wrong_if_it_does_not_follow_from_the_one_before(numbers, data):
    written = data.draw(st.lists(st.integers(0, 9), min_size=len(numbers), max_size=len(numbers)))
    expected = [(before + n) % 10 != w for before, n, w in zip([0, *written], numbers, written, strict=False)]
    assert running_sums_steps(prompt_of(numbers), [f"{w}\n" for w in written]) == expected


def test_a_prompt_of_another_task_is_refused():
    with pytest.raises(DataError, match="running_sums"):
        running_sums_steps(Prompt(0, 0, "p", "", None, {"metadata": None}), ["1"])
