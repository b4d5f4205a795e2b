"""Writes samples, groups of samples and comparisons of two iterations: as tables, or with whole texts.

Consumes the read models of `ops.queries`; produces lines on standard output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from ops.presentation.output import message, write, write_table
from yatt_core.counting import many

if TYPE_CHECKING:
    from ops.queries.groups import Groups, GroupView
    from ops.queries.rollout_comparison import GroupPair, RolloutComparison
    from ops.queries.rollout_page import Page
    from ops.queries.rollouts import Rollouts, SampleView

T = TypeVar("T")
SHOWN_CHARACTERS = 60


def write_page(page: Groups | Rollouts, full: bool) -> None:
    """Writes a page as a table or in full."""
    from ops.queries.groups import Groups

    if isinstance(page, Groups):
        if full:
            for group in page.groups:
                write_group(group)
        else:
            write_groups(page.groups)
        tell_limits(page, len(page.groups), "prompts")
        return
    if full:
        for sample in page.samples:
            write_sample(sample)
    else:
        write_samples(page.samples)
    tell_limits(page, len(page.samples), "samples")


def write_samples(samples: Sequence[SampleView]) -> None:
    """Writes samples as a table."""
    columns = ("prompt", "sample", "reward", "advantage", "correct", "tokens", "valid", "question", "response")
    write_table(
        columns,
        [
            (
                row.prompt_ordinal,
                row.sample,
                _scored(row, row.reward),
                row.advantage,
                _scored(row, "yes" if row.correct else "no"),
                f"{row.tokens}{' cut' if row.truncated else ''}",
                row.validity,
                _shortened(row.prompt),
                _shortened(row.response),
            )
            for row in samples
        ],
    )


def write_sample(row: SampleView) -> None:
    """Writes a sample with its whole texts."""
    write(f"--- prompt {row.prompt_ordinal} ({row.prompt_id}), sample {row.sample}")
    _write_facts(row)
    write(f"{row.prompt}\n>>> {row.response}\n")


def write_groups(groups: Sequence[GroupView]) -> None:
    """Writes groups as a table of means over their samples."""
    columns = ("prompt", "samples", "reward", "spread", "correct", "tokens", "valid", "question", "answer")
    write_table(
        columns,
        [
            (
                row.prompt_ordinal,
                len(row.samples),
                row.reward,
                row.spread,
                None if row.correct_fraction is None else f"{row.correct_fraction:.0%}",
                round(row.tokens),
                ", ".join(row.validity),
                _shortened(row.prompt),
                None if row.answer is None else _shortened(row.answer),
            )
            for row in groups
        ],
    )


def write_group(group: GroupView) -> None:
    """Writes a prompt, its reference answer and all of its responses in full."""
    write(f"=== prompt {group.prompt_ordinal} ({group.prompt_id}): {_in_words(group)}")
    write(group.prompt)
    if group.answer is not None:
        write(f"reference answer: {group.answer}")
    for row in group.samples:
        write(f"--- sample {row.sample}")
        _write_facts(row)
        write(f">>> {row.response}")
    write("")


def write_summary(found: RolloutComparison) -> None:
    """Writes the statistics of two iterations."""
    columns = ("iteration", "samples", "reward", "deviation", "correct", "truncated")
    sides = (found.before, found.after)
    write_table(
        columns,
        [
            (
                side.iteration,
                side.samples if side.seen == side.samples else f"{side.seen} of {side.samples}",
                side.mean,
                side.deviation,
                f"{side.correct_fraction:.1%}",
                f"{side.truncated_fraction:.1%}",
            )
            for side in sides
        ],
    )
    write(f"prompts in both iterations: {found.shared}\n")


def write_pairs(pairs: Sequence[GroupPair], full: bool) -> None:
    """Writes groups beside their counterparts in the other iteration, as a table or in full."""
    if not full:
        write_table(
            ("prompt", "before", "similarity", "reward before", "reward", "change", "question", "question before"),
            [_pair_row(pair) for pair in pairs],
        )
        return
    for pair in pairs:
        write("##### " + _relation(pair))
        if pair.before is not None:
            write_group(pair.before)
        write_group(pair.after)


def tell_limits(page: Page, shown: int, things: str) -> None:
    """Tells on standard error that there are more than were shown, or more samples than were examined."""
    if page.matching > shown:
        message(f"{shown} of {page.matching} {things} shown; --limit 0 shows all")
    if page.seen < page.total:
        message(f"only {page.seen} of the iteration's {many(page.total, 'sample')} were examined")


def _pair_row(pair: GroupPair) -> tuple[object, ...]:
    before = pair.before
    after = pair.after
    question = _shortened(after.prompt)
    if before is None:
        return (after.prompt_ordinal, None, None, None, after.reward, None, question, None)
    similarity = round(pair.similarity or 0.0, 2)
    change = None if after.reward is None or before.reward is None else after.reward - before.reward
    other = None if pair.same else _shortened(before.prompt)
    return (
        *(after.prompt_ordinal, before.prompt_ordinal, similarity),
        *(before.reward, after.reward, change, question, other),
    )


def _relation(pair: GroupPair) -> str:
    if pair.before is None:
        return "no similar prompt"
    return "same prompt" if pair.same else f"most similar prompt, similarity {pair.similarity:.2f}"


def _scored(row: SampleView, value: T) -> T | None:
    """Returns a value that only a sample with a score has; None for another sample."""
    from ops.queries.experience import Validity

    return None if row.validity == Validity.UNSCORED else value


def _in_words(group: GroupView) -> str:
    """Describes the scores of a group."""
    if group.reward is None or group.spread is None or group.correct_fraction is None:
        return f"no score for any of {many(len(group.samples), 'sample')}"
    correct = f"{group.correct_fraction:.0%} of {len(group.samples)} correct"
    return f"reward {group.reward:.4g}, spread {group.spread:.4g}, {correct}"


def _write_facts(row: SampleView) -> None:
    from ops.queries.experience import Validity

    parts = ", ".join(f"{name} {value:.4g}" for name, value in row.rewards.items())
    advantage = "" if row.advantage is None else f", advantage {row.advantage:.4g}"
    unscored = row.validity == Validity.UNSCORED
    valid = "" if row.validity == Validity.USED or unscored else f", {row.validity}"
    reward = row.validity if unscored else f"reward {row.reward:.4g}"
    write(f"{reward} ({parts}){advantage}, {many(row.tokens, 'token')}, ended by {row.finish}{valid}")
    if row.reward_error:
        write(f"reward failed: {row.reward_error}")
    if row.tool_error:
        write(f"tool failed: {row.tool_error}")
    for one in row.judgements:
        score = f"no score ({one.why})" if one.why else f"{one.score:.4g}"
        write(f"judge {one.part}: {score}{': ' + one.words if one.words else ''}")


def _shortened(text: str) -> str:
    """Returns the text on one line, cut at the front, since the end of a prompt often matters most."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"...{line[3 - SHOWN_CHARACTERS :]}"
