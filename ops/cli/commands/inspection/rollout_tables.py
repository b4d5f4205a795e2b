"""Writes samples, groups of samples and comparisons of two iterations: as tables, or with whole texts.

Consumes the read models of `ops.queries`; produces lines on standard output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ops.presentation.columns import Cell, Column, Columns
from ops.presentation.output import message, write, write_list
from yatt_core.counting import many

if TYPE_CHECKING:
    from ops.queries.groups import Groups, GroupView
    from ops.queries.rollout_comparison import GroupPair, RolloutComparison
    from ops.queries.rollout_page import Page
    from ops.queries.rollouts import Rollouts, SampleView

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
    write_list(SAMPLES, samples)


def write_sample(row: SampleView) -> None:
    """Writes a sample with its whole texts."""
    write(f"--- prompt {row.prompt_ordinal} ({row.prompt_id}), sample {row.sample}")
    _write_facts(row)
    write(f"{row.prompt}\n>>> {row.response}\n")


def write_groups(groups: Sequence[GroupView]) -> None:
    """Writes groups as a table of means over their samples."""
    write_list(GROUPS, groups)


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
    from ops.queries.rollout_comparison import SUMMARIES

    write_list(SUMMARIES, (found.before, found.after))
    write(f"prompts in both iterations: {found.shared}\n")


def write_pairs(pairs: Sequence[GroupPair], full: bool) -> None:
    """Writes groups beside their counterparts in the other iteration, as a table or in full."""
    if not full:
        write_list(PAIRS, pairs)
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


def _relation(pair: GroupPair) -> str:
    if pair.before is None:
        return "no similar prompt"
    return "same prompt" if pair.same else f"most similar prompt, similarity {pair.similarity:.2f}"


def _in_words(group: GroupView) -> str:
    """Describes the scores of a group."""
    if group.reward is None or group.spread is None or group.correct_fraction is None:
        return f"no score for any of {many(len(group.samples), 'sample')}"
    correct = f"{group.correct_fraction:.0%} of {len(group.samples)} correct"
    return f"reward {group.reward:.4g}, spread {group.spread:.4g}, {correct}"


def _write_facts(row: SampleView) -> None:
    from ops.queries.experience import Validity

    parts = ", ".join(f"{name} {'-' if value is None else format(value, '.4g')}" for name, value in row.rewards.items())
    advantage = "" if row.advantage is None else f", advantage {row.advantage:.4g}"
    valid = "" if row.validity == Validity.USED or row.reward is None else f", {row.validity}"
    reward = Validity.UNSCORED if row.reward is None else f"reward {row.reward:.4g}"
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


def _is_correct(row: SampleView) -> Cell:
    return None if row.correct is None else "yes" if row.correct else "no"


def _tokens(row: SampleView) -> str:
    return f"{row.tokens} cut" if row.truncated else str(row.tokens)


def _correct_fraction(row: GroupView) -> Cell:
    return None if row.correct_fraction is None else f"{row.correct_fraction:.0%}"


def _similarity(pair: GroupPair) -> Cell:
    return None if pair.before is None else round(pair.similarity or 0.0, 2)


def _change(pair: GroupPair) -> Cell:
    if pair.before is None or pair.before.reward is None or pair.after.reward is None:
        return None
    return pair.after.reward - pair.before.reward


def _other_question(pair: GroupPair) -> Cell:
    return None if pair.before is None or pair.same else _shortened(pair.before.prompt)


SAMPLES: Columns[SampleView] = (
    Column("prompt", lambda row: row.prompt_ordinal, number=True),
    Column("sample", lambda row: row.sample, number=True),
    Column("reward", lambda row: row.reward, number=True),
    Column("advantage", lambda row: row.advantage, number=True),
    Column("correct", _is_correct),
    Column("tokens", _tokens),
    Column("valid", lambda row: row.validity),
    Column("question", lambda row: _shortened(row.prompt)),
    Column("response", lambda row: _shortened(row.response)),
)
GROUPS: Columns[GroupView] = (
    Column("prompt", lambda row: row.prompt_ordinal, number=True),
    Column("samples", lambda row: len(row.samples), number=True),
    Column("reward", lambda row: row.reward, number=True),
    Column("spread", lambda row: row.spread, number=True),
    Column("correct", _correct_fraction, number=True),
    Column("tokens", lambda row: round(row.tokens), number=True),
    Column("valid", lambda row: ", ".join(row.validity)),
    Column("question", lambda row: _shortened(row.prompt)),
    Column("answer", lambda row: None if row.answer is None else _shortened(row.answer)),
)
PAIRS: Columns[GroupPair] = (
    Column("prompt", lambda pair: pair.after.prompt_ordinal, number=True),
    Column("before", lambda pair: None if pair.before is None else pair.before.prompt_ordinal, number=True),
    Column("similarity", _similarity, number=True),
    Column("reward before", lambda pair: None if pair.before is None else pair.before.reward, number=True),
    Column("reward", lambda pair: pair.after.reward, number=True),
    Column("change", _change, number=True),
    Column("question", lambda pair: _shortened(pair.after.prompt)),
    Column("question before", _other_question),
)
"""What the page shows as whole texts side by side, a terminal shows as lists of shortened ones."""
