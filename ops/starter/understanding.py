"""What all given files mean together, with the rows held out and the objective that they share.

Consumes looks at data and model, and what the user asks for. Produces an `Understanding`. Raises `ConfigurationError`, which
names the path, for rows that are not recognised and for files that do not belong into one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.starter.looks import LOOKED_AT, DataLook, ModelLook, first_rows
from ops.starter.recognition.answer_kinds import fits, single_answers
from ops.starter.recognition.programs import try_tests
from ops.starter.recognition.recognised import RL, ObjectiveKind, Recognised, RecognitionOptions, RewardChoice
from ops.starter.recognition.shapes import recognise
from ops.starter.recognition.table import value_of
from yatt_core.errors import ConfigurationError, DataError

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

    reward: None if the objective has none, or if the user's own are used.
    """

    sources: tuple[SourceMeaning, ...]
    objective: ObjectiveKind
    reward: RewardChoice | None
    system_prompt: str | None

    @property
    def samples(self) -> bool:
        """Whether the run samples responses, and therefore has rewards."""
        return self.objective is RL

    @property
    def has_answers(self) -> bool:
        """Whether all sources have reference answers for a reward of the user's own."""
        return all("answer_field" in source.recognised.source for source in self.sources)


def understand(looks: Sequence[DataLook], model: ModelLook, asked: RecognitionOptions) -> Understanding:
    """Returns what the files mean together; at least one file."""
    sources = tuple(_meaning(look, model, asked) for look in looks)
    first = sources[0].recognised
    for source in sources[1:]:
        _check_same(sources[0], source, lambda one: one.objective, "objectives")
        _check_same(sources[0], source, lambda one: one.reward, "rewards")
    asks = [source.recognised.system_prompt for source in sources]
    return Understanding(
        sources=sources,
        objective=first.objective,
        reward=first.reward,
        # The same reward reads the same form, and prompts that ask for it themselves may be asked twice.
        system_prompt=next((ask for ask in asks if ask is not None), None),
    )


def _meaning(look: DataLook, model: ModelLook, asked: RecognitionOptions) -> SourceMeaning:
    try:
        recognised = recognise(look.rows, asked, model.abilities)
    except ConfigurationError as error:
        raise ConfigurationError(f"--data {look.place.named}: {error}") from None
    says = list(look.place.says)
    held_out: Mapping[str, str] = {}
    rows: Sequence[Mapping[str, Any]] = ()
    for keys, name in look.place.held_out:
        if held_out:
            says.append(f"not used: {name}")
            continue
        try:
            found = first_rows(look.place, keys, LOOKED_AT)
        except (ConfigurationError, DataError) as error:
            says.append(f"not used: {name}, which cannot be read: {error}")
            continue
        if lacks := _lacking(found, look.rows, recognised):
            says.append(f"not used: {name}, {lacks}")
            continue
        held_out = keys
        rows = found
        says.append(f"held out: {name}")
    return SourceMeaning(look, recognised, held_out, held_out_rows=tuple(rows), says=tuple(says))


def _lacking(
    rows: Sequence[Mapping[str, Any]], training: Sequence[Mapping[str, Any]], recognised: Recognised
) -> str | None:
    """Returns why held-out rows cannot be used; None if they can."""
    required = [recognised.source[name] for name in REQUIRED if recognised.source.get(name) is not None]
    options = {} if recognised.reward is None else recognised.reward.options
    if "tests" in options:
        required.append(options["tests"])
    for number, row in enumerate(rows, start=1):
        for key in required:
            if value_of(row, key) in (None, "", []):
                return f"whose row {number} has nothing under {key!r}"
    if not rows:
        return "which has no rows"
    if "tests" in options:
        return _unreadable_tests(rows, options)
    label = recognised.source.get("label_field")
    if label is not None:
        wrong = [value_of(row, label) for row in rows if value_of(row, label) not in (True, False)]
        return f"whose labels under {label!r} are {wrong[0]!r}" if wrong else None
    return None if recognised.reward is None else _unlike(rows, training, recognised.source["answer_field"])


def _unreadable_tests(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str | None:
    try:
        try_tests(rows, options)
    except ConfigurationError as error:
        return f"whose tests cannot be read: {error}"
    return None


def _unlike(rows: Sequence[Mapping[str, Any]], training: Sequence[Mapping[str, Any]], key: str) -> str | None:
    """Returns why held-out answers are no answers as those of the training rows are; None if they are.

    Data sets whose test answers are secret write -1 or the like in their place.
    """
    held_out = single_answers([value_of(row, key) for row in rows])
    learnt = single_answers([value_of(row, key) for row in training]) or []
    if held_out is None or not fits(held_out, learnt):
        return f"whose answers under {key!r} have another form"
    if len(held_out) > 1 and len(set(held_out)) == 1 and held_out[0] not in learnt:
        return f"whose answers under {key!r} are all {held_out[0]!r}, which no training row has"
    return None


def _check_same(one: SourceMeaning, other: SourceMeaning, what: Callable[[Recognised], Any], name: str) -> None:
    """Raises `ConfigurationError` if two files need different settings of a run."""
    if what(one.recognised) != what(other.recognised):
        names = f"{one.look.place.named} and {other.look.place.named}"
        raise ConfigurationError(
            f"--data {names} have different {name}: {one.recognised.shape}{_reads(one)}, and "
            f"{other.recognised.shape}{_reads(other)}; write a spec for each, or name an --objective or a --reward that "
            "suits both"
        )


def _reads(source: SourceMeaning) -> str:
    reward = source.recognised.reward
    return "" if reward is None else f" (compares {reward.reads})"
