"""The curriculum as a state machine: bounds of shares, solved prompts, replay; and draws that follow it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spec.trees import tree
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.curriculum import NEVER, Curriculum, PromptOutcome, bounded_shares
from yatt_core.prompts.stream import Cursor, draw, row_at
from yatt_core.protocols.receipts import PromptPool, PromptRef
from yatt_core.spec import parse_spec
from yatt_core.spec.sections.curriculum import CurriculumSpec
from yatt_core.spec.sections.data import DataSpec

SIZES = (5, 9, 3)
POOLS = [PromptPool(f"p{number}", number, size) for number, size in enumerate(SIZES)]
SETTINGS = st.builds(
    lambda low, high, rest: CurriculumSpec.model_validate(
        {"field": "level", "min_share": min(low, high), "max_share": max(low, high), **rest}
    ),
    st.floats(0, 1),
    st.floats(0.01, 1),
    st.fixed_dictionaries(
        {
            "target": st.floats(0, 1),
            "decay": st.floats(0, 0.99),
            "retire": st.none()
            | st.fixed_dictionaries({"at": st.floats(0.1, 1), "return_after": st.none() | st.integers(1, 3)}),
        }
    ),
)
RUNS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 99)), min_size=1, max_size=8)
"""For each iteration, the number of prompts, and what selects the successes."""


def data_with(curriculum: CurriculumSpec | None) -> DataSpec:
    source = {"kind": "reasoning_gym", "task": "spell_backward"}
    return DataSpec(sources=tuple({**source, "weight": each} for each in (1, 2, 0.5)), curriculum=curriculum)  # type: ignore[arg-type]


def success_of(ref: PromptRef, chance: int) -> float:
    return (ref.ordinal * 7 + ref.position * 3 + chance) % 5 / 4


def begun(data: DataSpec) -> Cursor:
    return Cursor.start(data).under(data, POOLS)


def iterate(data: DataSpec, cursor: Cursor, iteration: int, count: int, chance: int) -> tuple[list[PromptRef], Cursor]:
    """Draws an iteration's prompts in two waves, and returns them with the next iteration's cursor."""
    first, middle = draw(data, 3, cursor, count // 2)
    second, end = draw(data, 3, Cursor.from_json(json.loads(json.dumps(middle.to_json()))), count - count // 2)
    refs = [*first, *second]
    return refs, end.learned(data, 3, iteration, [(ref, success_of(ref, chance)) for ref in reversed(refs)])


@given(SETTINGS, RUNS)
def test_shares_stay_within_bounds_and_a_resumed_run_is_the_same(
    settings: CurriculumSpec, run: Sequence[tuple[int, int]]
) -> None:
    data = data_with(settings)
    whole = resumed = begun(data)
    for iteration, (count, chance) in enumerate(run, 1):
        refs, whole = iterate(data, whole, iteration, count, chance)
        again, resumed = iterate(
            data, Cursor.from_json(json.loads(json.dumps(resumed.to_json()))), iteration, count, chance
        )
        assert again == refs and resumed == whole
        assert whole.curriculum is not None
        pools = [pool for pool in whole.curriculum.pools if pool.is_open]
        low = min(settings.min_share, 1 / len(pools))
        high = max(settings.max_share, 1 / len(pools))
        assert math.fsum(pool.share for pool in pools) == pytest.approx(1, abs=1e-9)
        assert all(low - 1e-9 <= pool.share <= high + 1e-9 for pool in pools)
        assert all(pool.share == 0 for pool in whole.curriculum.pools if not pool.is_open)


@given(SETTINGS, RUNS)
def test_no_prompt_is_lost_and_solved_ones_rest(settings: CurriculumSpec, run: Sequence[tuple[int, int]]) -> None:
    """A prompt is left out if and only if it has been solved and its return is not due."""
    data = data_with(settings)
    cursor = begun(data_with(settings))
    resting: dict[tuple[int, int], float] = {}
    for iteration, (count, chance) in enumerate(run, 1):
        resting = {prompt: due for prompt, due in resting.items() if due > iteration}
        if len(resting) == sum(SIZES):
            resting = {}
        refs, cursor = iterate(data, cursor, iteration, count, chance)
        drawn = [(ref, (ref.source, row_at(3, ref.source, ref.position, SIZES[ref.source]))) for ref in refs]
        assert not resting.keys() & {prompt for _, prompt in drawn}
        if settings.retire is not None:
            wait = settings.retire.return_after
            due = math.inf if wait is None else iteration + 1 + wait
            resting |= {prompt: due for ref, prompt in drawn if success_of(ref, chance) >= settings.retire.at}
        assert cursor.curriculum is not None
        told = {(number, row) for number, pool in enumerate(cursor.curriculum.pools) for row in pool.solved}
        left = {prompt for prompt, due in resting.items() if due > iteration + 1}
        assert told == (left if len(left) < sum(SIZES) else set())


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_shares_are_proportional_between_their_bounds(wanted: list[float], low: float, high: float) -> None:
    low, high = sorted((low, high))
    shares = bounded_shares(wanted, low, high)
    equal = 1 / len(wanted)
    assert math.fsum(shares) == pytest.approx(1, abs=1e-9)
    assert all(min(low, equal) - 1e-12 <= share <= max(high, equal) + 1e-12 for share in shares)
    inside = [
        (share, value)
        for share, value in zip(shares, wanted, strict=True)
        if min(low, equal) + 1e-6 < share < max(high, equal) - 1e-6 and value > 1e-6 * max(wanted)
    ]
    ratios = [share / value for share, value in inside]
    assert not ratios or max(ratios) == pytest.approx(min(ratios), rel=1e-6)


def test_shares_at_the_upper_bound_leave_the_rest_to_others() -> None:
    """The factor at which the smallest share is at the bound is not exact."""
    for smallest in (0.1, 0.3, 1 / 3, 0.7):
        assert bounded_shares([1.0, smallest, 0.0], 0.0, 0.4375) == pytest.approx([0.4375, 0.4375, 0.125])


def test_a_pool_near_the_target_is_drawn_from_most() -> None:
    settings = CurriculumSpec(min_share=0.1, decay=0.0)
    data = data_with(settings)
    start = begun(data).curriculum
    assert start is not None and [pool.share for pool in start.pools] == pytest.approx([2 / 7, 4 / 7, 1 / 7])
    after = start.after(settings, 1, [PromptOutcome(0, 0, 0.5), PromptOutcome(1, 0, 1.0), PromptOutcome(2, 0, 0.25)])
    assert [pool.rate for pool in after.pools] == [0.5, 1.0, 0.25]
    assert [pool.share for pool in after.pools] == pytest.approx([0.9 * 0.8, 0.1, 0.9 * 0.2])
    drawn, _ = draw(data, 5, Cursor(0, (0, 0, 0), after), 4000)
    counts = Counter(ref.source for ref in drawn)
    assert [counts[number] / 4000 for number in range(3)] == pytest.approx([0.72, 0.1, 0.18], abs=0.03)


def test_a_rate_is_a_moving_average() -> None:
    settings = CurriculumSpec(decay=0.75)
    state = Curriculum.start(settings, POOLS, [1, 1, 1])
    for iteration, success in enumerate((1.0, 0.0), 1):
        state = state.after(settings, iteration, [PromptOutcome(0, 0, success), PromptOutcome(0, 1, success)])
    assert [pool.rate for pool in state.pools] == [0.75, None, None]


def test_a_pool_without_open_prompts_is_left_until_one_returns() -> None:
    settings = CurriculumSpec.model_validate({"retire": {"return_after": 2}})
    data = data_with(settings)
    state = begun(data).curriculum
    assert state is not None
    state = state.after(settings, 1, [PromptOutcome(2, row, 1.0) for row in range(3)])
    for iteration in (2, 3):
        assert not state.pools[2].is_open
        assert 2 not in {ref.source for ref in draw(data, 0, Cursor(0, (0, 0, 0), state), 300)[0]}
        state = state.after(settings, iteration, [])
    assert state.pools[2].is_open and state.pools[2].share > 0


def test_if_everything_is_solved_everything_returns() -> None:
    settings = CurriculumSpec.model_validate({"retire": {}})
    state = Curriculum.start(settings, POOLS, [1, 1, 1])
    every = [PromptOutcome(pool, row, 1.0) for pool, size in enumerate(SIZES) for row in range(size)]
    almost = state.after(settings, 1, every[1:])
    assert [len(pool.solved) for pool in almost.pools] == [4, 9, 3] and almost.pools[0].share == 1.0
    assert almost.pools[0].solved[1] == NEVER
    assert not any(pool.solved for pool in almost.after(settings, 2, every[:1]).pools)


def test_a_curriculum_that_begins_within_a_run_continues_from_its_cursor() -> None:
    plain = data_with(None)
    first, cursor = draw(plain, 3, Cursor.start(plain).under(plain, ()), 10)
    data = data_with(CurriculumSpec())
    second, after = draw(data, 3, cursor.under(data, POOLS), 10)
    assert len({(ref.source, ref.position) for ref in (*first, *second)}) == 20
    assert after.under(plain, ()) == Cursor(20, after.drawn)


@pytest.mark.parametrize(
    ("curriculum", "key"),
    [
        ({"min_share": 0.6, "max_share": 0.5}, "min_share"),
        ({"min_share": 0.6}, "curriculum.min_share"),
        ({"max_share": 0.4, "min_share": 0}, "curriculum.max_share"),
        ({"retire": {"at": 0}}, "data.curriculum.retire.at"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(curriculum: dict[str, object], key: str) -> None:
    sources = [{"kind": "reasoning_gym", "task": "spell_backward", "name": name} for name in ("a", "b")]
    with pytest.raises(ConfigurationError, match=key):
        parse_spec(tree(data__sources=sources, data__curriculum=curriculum), "two sources")
