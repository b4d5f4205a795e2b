"""What all given files mean together, with the rows held out and the objective that they share.

Consumes looks at data and model, and what the user asks for. Produces an `Understanding`. Raises `ConfigurationError`, which
names the path, for rows that are not recognised and for files that do not belong into one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.starter.looks import DataLook, ModelLook, first_rows
from ops.starter.recognition.recognised import RL, Asked, Recognised, RewardChoice
from ops.starter.recognition.shapes import recognise
from ops.starter.recognition.table import value_of
from yatt_core.errors import ConfigurationError, DataError

HELD_OUT_LOOKED_AT = 1_000
REQUIRED = ("prompt_field", "answer_field", "chosen_field", "rejected_field", "label_field")
"""Keys of a source that every held-out row must have a value for."""


@dataclass(frozen=True, slots=True)
class SourceMeaning:
    """What one path means.

    held_out: keys of the source that name its held-out rows; empty if they come from its training rows.
    held_out_rows: the first of the rows that these name.
    says: sentences about its splits and held-out rows.
    """

    look: DataLook
    recognised: Recognised
    held_out: Mapping[str, str]
    held_out_rows: tuple[Mapping[str, Any], ...]
    says: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Understanding:
    """What all paths mean.

    objective: one of `OBJECTIVES`.
    reward: None if the objective has none, or if the user's own are used.
    """

    sources: tuple[SourceMeaning, ...]
    objective: str
    reward: RewardChoice | None
    system_prompt: str | None

    @property
    def samples(self) -> bool:
        """Whether the run samples responses, and therefore has rewards."""
        return self.objective == RL

    @property
    def has_answers(self) -> bool:
        """Whether all sources have reference answers for a reward of the user's own."""
        return all("answer_field" in source.recognised.source for source in self.sources)


def understand(looks: Sequence[DataLook], model: ModelLook, asked: Asked) -> Understanding:
    """Returns what the files mean together; at least one file."""
    sources = tuple(_meaning(look, model, asked) for look in looks)
    first = sources[0].recognised
    for source in sources[1:]:
        _check_same(sources[0], source, lambda one: one.objective, "objectives")
        _check_same(sources[0], source, lambda one: one.reward, "rewards")
    asks = {source.recognised.system_prompt for source in sources}
    return Understanding(
        sources=sources,
        objective=first.objective,
        reward=first.reward,
        system_prompt=asks.pop() if len(asks) == 1 else None,
    )


def _meaning(look: DataLook, model: ModelLook, asked: Asked) -> SourceMeaning:
    try:
        recognised = recognise(look.rows, asked, model.abilities)
    except ConfigurationError as error:
        raise ConfigurationError(f"--data {look.path}: {error}") from None
    says = list(look.place.says)
    held_out: Mapping[str, str] = {}
    rows: Sequence[Mapping[str, Any]] = ()
    for keys, name in look.place.held_out:
        if held_out:
            says.append(f"not used: {name}")
            continue
        try:
            found = first_rows(look.place, keys, HELD_OUT_LOOKED_AT)
        except (ConfigurationError, DataError) as error:
            says.append(f"not used: {name}, which cannot be read: {error}")
            continue
        if lacks := _lacking(found, recognised):
            says.append(f"not used: {name}, {lacks}")
            continue
        held_out = keys
        rows = found
        says.append(f"held out: {name}")
    return SourceMeaning(look, recognised, held_out, held_out_rows=tuple(rows), says=tuple(says))


def _lacking(rows: Sequence[Mapping[str, Any]], recognised: Recognised) -> str | None:
    """Returns why held-out rows cannot be used; None if they can."""
    required = [recognised.source[name] for name in REQUIRED if recognised.source.get(name) is not None]
    if recognised.reward is not None and "tests" in recognised.reward.options:
        required.append(recognised.reward.options["tests"])
    for number, row in enumerate(rows, start=1):
        for key in required:
            if value_of(row, key) in (None, "", []):
                return f"whose row {number} has nothing under {key!r}"
    return None if rows else "which has no rows"


def _check_same(one: SourceMeaning, other: SourceMeaning, what: Callable[[Recognised], Any], name: str) -> None:
    """Raises `ConfigurationError` if two files need different settings of a run."""
    if what(one.recognised) != what(other.recognised):
        raise ConfigurationError(
            f"--data {one.look.path} and {other.look.path} have different {name}: {one.recognised.shape}"
            f"{_reads(one)}, and {other.recognised.shape}{_reads(other)}; write a spec for each, or name an "
            "--objective or a "
            "--reward that suits both"
        )


def _reads(source: SourceMeaning) -> str:
    reward = source.recognised.reward
    return "" if reward is None else f" (compares {reward.reads})"
