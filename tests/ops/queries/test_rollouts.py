"""The rollout browser's queries: groups, order and conditions, validity, advantages, answers, and nearest prompts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from db.core.engine import Fence
from db.ledger import Ledger
from flows.run.home import Home
from ops.cli.commands.inspection.rollout_tables import write_page, write_summary
from ops.queries import experience
from ops.queries.experience import Validity
from ops.queries.groups import Groups, group_of, groups
from ops.queries.nearest import nearest
from ops.queries.rollout_comparison import comparison, group_pairs, read_both
from ops.queries.rollouts import rollouts
from ops.queries.sample_filters import InvalidQuery, Selection
from tests.ops.queries.sampled_run import seed_sampled_run
from tests.ops.seeding import SHARDS, commit_of, seal_iteration, seed_run
from yatt_core.errors import DataError
from yatt_core.experience.table import UNSCORED, experience_schema
from yatt_core.inputs.manifest import INPUTS


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("sampled") / "runs")
    seed_sampled_run(home)
    return home


@pytest.fixture(scope="module")
def ledger(seeded: Home) -> Iterator[Ledger]:
    with Ledger.open(seeded.ledger) as ledger:
        yield ledger


RUN = "toy-1"


def ordinals(found: Groups) -> list[int]:
    return [group.prompt_ordinal for group in found.groups]


def test_a_group_has_all_responses_to_a_prompt_with_its_reference_answer(ledger: Ledger, seeded: Home) -> None:
    found = groups(ledger, seeded, RUN, 1, Selection())
    assert ordinals(found) == [0, 1, 2, 3]
    assert (found.prompts, found.total, found.seen, found.matching) == (4, 8, 8, 4)
    assert found.parts == ("exact", "format")
    assert (found.no_advantages, found.no_answers) == ("", "")
    second = found.groups[1]
    assert [sample.sample for sample in second.samples] == [0, 1]
    assert (second.reward, second.spread, second.lowest, second.highest) == (0.75, 0.5, 0.25, 1.25)
    assert second.rewards == {"exact": 0.5, "format": 0.5}
    assert [sample.rewards["exact"] for sample in second.samples] == [0.0, 1.0]
    for group in found.groups:
        word = group.prompt.split()[-1].strip("'\"?.: ")
        assert group.answer == group.samples[0].answer is not None
        assert group.answer == word[::-1], "spell_backward"


def test_advantages_and_validity_are_those_of_the_update(ledger: Ledger, seeded: Home) -> None:
    found = groups(ledger, seeded, RUN, 1, Selection())
    assert [group.validity for group in found.groups] == [("equal rewards",), ("used",), ("used",), ("surplus",)]
    assert [[sample.advantage for sample in group.samples] for group in found.groups] == [
        [None, None],
        [-1.0, 1.0],
        [-1.0, 1.0],
        [None, None],
    ]
    assert [group.advantage for group in found.groups] == [None, 1.0, 1.0, None]


@pytest.mark.parametrize(
    ("order", "ascending", "expected"),
    [
        ("tokens", False, [3, 2, 1, 0]),
        ("tokens", True, [0, 1, 2, 3]),
        ("spread", True, [0, 1, 2, 3]),
        ("exact", False, [1, 2, 3, 0]),
        ("reward/exact", True, [0, 1, 2, 3]),
        ("advantage", False, [1, 2, 0, 3]),
    ],
)
def test_groups_are_sorted_by_any_number(
    ledger: Ledger, seeded: Home, order: str, ascending: bool, expected: list[int]
) -> None:
    found = groups(ledger, seeded, RUN, 1, Selection(order=order, ascending=ascending))
    assert order.removeprefix("reward/") in found.orders
    assert ordinals(found) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("tokens >= 7",), [(2, 1), (3, 0), (3, 1)]),
        (("exact=1", "validity = used"), [(1, 1), (2, 1)]),
        (("finish = stop", "reward > 0.2", "prompt != 0"), [(1, 0), (2, 0), (3, 0)]),
        (("advantage < 0",), [(1, 0), (2, 0)]),
        (("truncated = yes", "correct = yes", "prompt <= 1"), [(0, 1), (1, 1)]),
        (("failed = yes",), []),
    ],
)
def test_samples_are_filtered_by_conditions(
    ledger: Ledger, seeded: Home, where: tuple[str, ...], expected: list[tuple[int, int]]
) -> None:
    found = rollouts(ledger, seeded, RUN, 1, Selection(where=where))
    assert [(row.prompt_ordinal, row.sample) for row in found.samples] == expected
    by_prompt = groups(ledger, seeded, RUN, 1, Selection(where=where))
    assert ordinals(by_prompt) == sorted({ordinal for ordinal, _ in expected})
    assert sum(group.matching for group in by_prompt.groups) == len(expected)
    assert all(len(group.samples) == 2 for group in by_prompt.groups), "a group is always shown as a whole"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Selection(order="rewrad"), "reward, advantage, tokens, exact, format"),
        (Selection(where=("rewrad > 1",)), "rewrad"),
        (Selection(where=("reward >",)), "NAME OPERATOR VALUE"),
        (Selection(where=("reward > high",)), "not a number"),
        (Selection(where=("finish > stop",)), "= or !="),
        (Selection(where=("correct = maybe",)), "yes or no"),
    ],
)
def test_what_does_not_apply_is_refused(ledger: Ledger, seeded: Home, wanted: Selection, says: str) -> None:
    for read in (groups, rollouts):
        with pytest.raises(InvalidQuery, match=says):
            read(ledger, seeded, RUN, 1, wanted)


def test_groups_are_paged(ledger: Ledger, seeded: Home) -> None:
    pages = [groups(ledger, seeded, RUN, 1, Selection(text="answer"), 3, offset) for offset in (0, 3, 6)]
    assert [ordinals(page) for page in pages] == [[0, 1, 2], [3], []]
    assert {page.matching for page in pages} == {4}


def test_samples_beyond_the_limit_are_left_out_by_whole_groups_and_counted(
    ledger: Ledger, seeded: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experience, "SAMPLES", 5)
    for text in ("", "answer"):
        found = groups(ledger, seeded, RUN, 1, Selection(text=text))
        assert (found.prompts, found.matching, found.seen, found.total) == (2, 2, 4, 8)
        assert [len(group.samples) for group in found.groups] == [2, 2]
    samples = rollouts(ledger, seeded, RUN, 1, Selection())
    assert (len(samples.samples), samples.matching, samples.seen, samples.total) == (4, 4, 4, 8)
    summary = comparison(*read_both(ledger, seeded, RUN, 1, 2))
    assert (summary.before.seen, summary.before.samples) == (4, 8)
    write_page(found, full=False)
    write_summary(summary)
    told = capsys.readouterr()
    assert "4 of the iteration's 8 samples" in told.err and "4 of 8" in told.out
    monkeypatch.setattr(experience, "SAMPLES", 1)
    assert rollouts(ledger, seeded, RUN, 1, Selection()).seen == 1, "a prompt with more samples than that is cut"


def test_a_prompt_is_paired_with_itself_or_with_the_most_similar_one(ledger: Ledger, seeded: Home) -> None:
    both = read_both(ledger, seeded, RUN, 1, 2)
    found = group_pairs(ledger, seeded, *both, Selection())
    first = {group.prompt_id for group in groups(ledger, seeded, RUN, 1, Selection()).groups}
    assert len(found.pairs) == 4 and {pair.same for pair in found.pairs} == {True, False}
    for pair in found.pairs:
        assert pair.same == (pair.after.prompt_id in first)
        assert pair.before is not None and pair.before.prompt_id in first
        if pair.same:
            assert (pair.before.prompt, pair.similarity) == (pair.after.prompt, 1.0)
        else:
            assert pair.similarity is not None and 0.2 <= pair.similarity < 1.0
    summary = comparison(*both)
    assert summary.shared == len(summary.prompts) == len({pair.after.prompt_id for pair in found.pairs if pair.same})


def test_the_most_similar_prompt_is_found_despite_a_common_template() -> None:
    template = "You are a careful assistant. Think step by step and answer briefly. "
    asked = [template + text for text in ("How many apples does Anna buy?", "Spell the word lantern backward.", "")]
    known = [template + text for text in ("Spell the word lanterns backward.", "How many apples does Berta buy?")]
    found = nearest([*asked, "zzzz"], known)
    assert [each and each[0] for each in found[:2]] == [1, 0]
    assert found[3] is None
    assert nearest(known, known) == [(0, pytest.approx(1.0)), (1, pytest.approx(1.0))]
    assert nearest(["a"], []) == [None] and nearest([], known) == []


def test_missing_inputs_and_advantages_are_explained(seeded: Home, tmp_path: Path) -> None:
    home = Home(Path(shutil.copytree(seeded.folder, tmp_path / "runs")))
    folder = home.run_folder(RUN)
    with Ledger.open(home.ledger) as ledger:
        shutil.rmtree(folder / INPUTS)
        (prepared,) = folder.glob("experience/b000/i000001/prepared.t*")
        rank = prepared / "rank-00.parquet"
        rank.write_bytes(rank.read_bytes()[:-1] + b"x")
        with pytest.raises(DataError, match=r"rank-00\.parquet"):
            groups(ledger, home, RUN, 1, Selection())
        shutil.rmtree(prepared)
        found = groups(ledger, home, RUN, 1, Selection())
    assert str(prepared) in found.no_advantages and str(folder / INPUTS) in found.no_answers
    assert [(group.answer, group.advantage) for group in found.groups] == [(None, None)] * 4


def test_a_group_without_any_score_has_no_reward(ledger: Ledger, seeded: Home) -> None:
    found = groups(ledger, seeded, RUN, 1, Selection()).groups[0]
    lacking = [replace(sample, validity=Validity.UNSCORED, reward=None, correct=None) for sample in found.samples]
    group = group_of(lacking, matching=len(lacking))
    assert (group.reward, group.spread, group.lowest, group.highest, group.correct_fraction) == (None,) * 5
    assert group.rewards == {} and group.tokens == found.tokens and group.validity == ("no score",)


def with_failures(table: pa.Table, failed: int = 1) -> pa.Table:
    """Returns samples of which the first ones have no score, because `virtual` failed on them; their other part has a value."""
    rows = table.to_pylist()
    for number, row in enumerate(rows):
        missing = "virtual/raised" if number < failed else None
        lost = {"reward": 0.0, "correct": False, "reward/virtual": 0.0} if missing else {"correct": number % 2 == 0}
        row |= {"reward/other": 0.5, UNSCORED: missing} | lost
    return pa.Table.from_pylist(rows, schema=experience_schema(["virtual", "other"], [UNSCORED]))


@pytest.fixture
def partly_scored(tmp_path: Path) -> tuple[Home, str]:
    """A run in whose second iteration the first sample of each shard has no score."""
    home = Home(tmp_path / "runs")
    run = seed_run(home, committed=1, ends=False)
    with Ledger.open(home.ledger) as ledger:
        seal_iteration(home, ledger, Fence.of_run(run, 1), 2, with_failures)
        ledger.commits.commit(Fence.of_run(run, 1), commit_of(2))
    return home, run


def test_a_sample_without_a_score_has_no_reward(partly_scored: tuple[Home, str]) -> None:
    home, run = partly_scored
    with Ledger.open(home.ledger) as ledger:
        first, second, *_ = rollouts(ledger, home, run, 2, Selection()).samples
    assert (first.reward, first.correct, first.validity) == (None, None, "no score")
    assert first.rewards == {"virtual": None, "other": 0.5}
    assert second.reward is not None and second.correct is False and second.rewards["virtual"] is not None


@pytest.mark.parametrize("where", ["reward <= 0.5", "reward != 7", "correct = no", "virtual = 0", "correct != yes"])
def test_no_condition_on_a_missing_score_holds(partly_scored: tuple[Home, str], where: str) -> None:
    home, run = partly_scored
    with Ledger.open(home.ledger) as ledger:
        found = rollouts(ledger, home, run, 2, Selection(where=(where,))).samples
        assert all(sample.reward is not None for sample in found)
        other = rollouts(ledger, home, run, 2, Selection(where=("other = 0.5", "validity = no score")))
    assert other.matching == SHARDS, "the part that has a value has one"


@pytest.mark.parametrize("order", ["reward", "virtual"])
@pytest.mark.parametrize("ascending", [True, False])
def test_samples_without_a_score_come_last(partly_scored: tuple[Home, str], order: str, ascending: bool) -> None:
    home, run = partly_scored
    with Ledger.open(home.ledger) as ledger:
        found = rollouts(ledger, home, run, 2, Selection(order=order, ascending=ascending)).samples
    rewards = [sample.reward for sample in found]
    known = [reward for reward in rewards if reward is not None]
    assert rewards == [*sorted(known, reverse=not ascending), *[None] * SHARDS]


def test_groups_are_sorted_by_what_they_show(partly_scored: tuple[Home, str]) -> None:
    home, run = partly_scored
    with Ledger.open(home.ledger) as ledger:
        for order, shown in (
            ("reward", lambda group: group.reward),
            ("spread", lambda group: group.spread),
            ("correct", lambda group: group.correct_fraction),
            ("virtual", lambda group: group.rewards["virtual"]),
        ):
            found = [shown(group) for group in groups(ledger, home, run, 2, Selection(order=order)).groups]
            assert found == sorted(found, reverse=True), order


def test_a_comparison_counts_samples_that_have_a_score(partly_scored: tuple[Home, str]) -> None:
    home, run = partly_scored
    with Ledger.open(home.ledger) as ledger:
        scored = [sample for sample in rollouts(ledger, home, run, 2, Selection()).samples if sample.reward is not None]
        found = comparison(*read_both(ledger, home, run, 1, 2))
    assert found.after.mean == pytest.approx(sum(sample.reward or 0.0 for sample in scored) / len(scored))
    assert found.after.correct_fraction == sum(sample.correct is True for sample in scored) / len(scored)
    assert sum(found.after.counts) == len(scored) < found.after.samples


def test_an_iteration_without_any_score_has_no_mean_and_its_prompts_no_change(
    partly_scored: tuple[Home, str], capsys: pytest.CaptureFixture[str]
) -> None:
    home, run = partly_scored
    with Ledger.open(home.ledger) as ledger:
        seal_iteration(home, ledger, Fence.of_run(run, 1), 3, lambda table: with_failures(table, table.num_rows))
        found = comparison(*read_both(ledger, home, run, 2, 3))
    assert [(shared.after, shared.change) for shared in found.prompts] == [(None, None)] * found.shared
    assert (found.after.mean, found.after.deviation, found.after.correct_fraction) == (None, None, None)
    write_summary(found)
    assert "None" not in capsys.readouterr().out
