"""Looks for rows that teach nothing, or the opposite of what they say: equal responses, contradictions, labels all alike.

Consumes a spec and prompts. Produces warnings with the number and the first of such rows, and how many labels there are; raises
`ConfigurationError` where no row is sound.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from yatt_core.digests import canonical_json
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.prompts.keys import value_at
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.responses import Messages
from yatt_core.prompts.rows import responses_of
from yatt_core.rewards.extraction import Extraction
from yatt_core.rewards.written_numbers import number_alone
from yatt_core.spec import RunSpec
from yatt_core.spec.objective import KtoObjective, SftObjective
from yatt_core.spec.rewards.scheme import FunctionPart
from yatt_core.spec.sections.data import FileSource

SCORES = re.compile(r"score|rating|reward", re.IGNORECASE)
"""Keys with one of these words say how good a response is."""
DIGEST_BYTES = 12


@dataclass(frozen=True, slots=True)
class RowContents:
    """What rows contain.

    labels: number of desirable and of undesirable responses; None for a run without labels.
    """

    warnings: Sequence[str] = ()
    labels: tuple[int, int] | None = None


@dataclass(slots=True)
class _Count:
    """Rows of one kind: their number, and the place of the first."""

    count: int = 0
    first: str = ""

    def add(self, prompt: Prompt, more: str = "") -> None:
        self.count += 1
        self.first = self.first or prompt.prompt_id + more

    def of(self, total: int) -> str:
        return f"{self.count:,} of {total:,} rows, the first is {self.first}"


class _Look(Protocol):
    """Looks at one row after the other."""

    def add(self, prompt: Prompt) -> None: ...

    def result(self) -> RowContents: ...


def look_at_rows(spec: RunSpec, prompts: Iterable[Prompt]) -> RowContents:
    """Returns what is found in rows.

    Raises `ConfigurationError` if all rows have two equal responses, or scores that contradict the order of their responses.
    """
    look = _look(spec)
    if look is None:
        return RowContents()
    for prompt in prompts:
        look.add(prompt)
    return look.result()


def _look(spec: RunSpec) -> _Look | None:
    if spec.samples_responses:
        compared = [part for part in spec.rewards.functions if part.function in ("exact_match", "math_equal")]
        return _Answers(_options(compared[0]), compared[0].function == "exact_match") if compared else None
    if isinstance(spec.objective, KtoObjective):
        return _Labels(spec)
    return None if isinstance(spec.objective, SftObjective) else _Pairs(spec)


@dataclass(slots=True)
class _Pairs:
    """Pairs of responses of which one is preferred."""

    spec: RunSpec
    total: int = 0
    equal: _Count = field(default_factory=_Count)
    scored: dict[tuple[str, str], int] = field(default_factory=dict)
    contradicted: dict[tuple[str, str], _Count] = field(default_factory=dict)

    def add(self, prompt: Prompt) -> None:
        """Looks at a row."""
        self.total += 1
        chosen, rejected = responses_of(self.spec, prompt).replies
        if _plain(chosen) == _plain(rejected):
            self.equal.add(prompt)
        source = self.spec.data.sources[prompt.source]
        assert isinstance(source, FileSource), "other sources have no pairs"
        for keys in _score_keys(prompt.entry, source):
            values = [_number(value_at(prompt.entry, key)) for key in keys]
            if values[0] is None or values[1] is None:
                continue
            self.scored[keys] = self.scored.get(keys, 0) + 1
            if values[0] < values[1]:
                found = self.contradicted.setdefault(keys, _Count())
                found.add(prompt, f" with {values[0]:g} and {values[1]:g}")

    def result(self) -> RowContents:
        """Returns the warnings; raises what `look_at_rows` raises."""
        warnings = list[str]()
        errors = list[str]()
        if self.equal.count:
            all_equal = self.equal.count == self.total
            (errors if all_equal else warnings).append(
                f"data.sources: the preferred and the other response are equal in {self.equal.of(self.total)}; nothing can be "
                "learnt of them, leave them out"
            )
        for keys, found in self.contradicted.items():
            scored = self.scored[keys]
            all_contradict = found.count == scored and 2 * scored >= self.total
            (errors if all_contradict else warnings).append(
                f"data.sources: {keys[0]} is below {keys[1]} in {found.of(scored)}: the response that is learnt has the lower "
                "score; exchange chosen_field and rejected_field, correct the rows, or leave these keys out of them if lower is "
                "better"
            )
        if errors:
            raise ConfigurationError("\n".join(errors))
        return RowContents(warnings)


@dataclass(slots=True)
class _Labels:
    """Responses that are labelled as desirable or not."""

    spec: RunSpec
    counts: list[int] = field(default_factory=lambda: [0, 0])
    labels: dict[bytes, bool] = field(default_factory=dict)
    contradicted: _Count = field(default_factory=_Count)

    def add(self, prompt: Prompt) -> None:
        """Looks at a row."""
        found = responses_of(self.spec, prompt)
        self.counts[not found.desirable] += 1
        key = _digest([_question(prompt), [_plain(reply) for reply in found.replies]])
        if self.labels.setdefault(key, found.desirable) != found.desirable:
            self.contradicted.add(prompt)

    def result(self) -> RowContents:
        """Returns the warnings."""
        desirable, undesirable = self.counts
        warnings = list[str]()
        if not (desirable and undesirable):
            warnings.append(
                f"data.sources: all {desirable + undesirable:,} rows are labelled {'true' if desirable else 'false'} "
                "(label_field), but objective.kind: kto learns from the difference of both labels"
            )
        if self.contradicted.count:
            warnings.append(
                f"data.sources: {self.contradicted.of(sum(self.counts))}, repeat a prompt and response with the other label"
            )
        return RowContents(warnings, (desirable, undesirable))


_Written = tuple[str | None, tuple[str, ...]]
"""The reference answers of a row, as they are written."""


@dataclass(slots=True)
class _Answers:
    """Reference answers with which a reward compares.

    known: the answers to each question, by its digest, as they are written where it was first asked.
    as_texts: whether they are compared as texts; if not, expressions that are written differently may be equal.
    """

    options: Extraction
    as_texts: bool
    total: int = 0
    known: dict[bytes, _Written] = field(default_factory=dict)
    contradicted: _Count = field(default_factory=_Count)

    def add(self, prompt: Prompt) -> None:
        """Looks at a row."""
        self.total += 1
        written = (prompt.answer, prompt.other_answers)
        earlier = self.known.setdefault(_digest(_question(prompt)), written)
        if earlier == written:
            return
        before = self._answers(replace(prompt, answer=earlier[0], other_answers=earlier[1]))
        answers = self._answers(prompt)
        if before and answers and not set(before) & set(answers):
            self.contradicted.add(prompt, f" with {answers[0]!r:.60} after {before[0]!r:.60}")

    def result(self) -> RowContents:
        """Returns the warnings."""
        if not self.contradicted.count:
            return RowContents()
        said = f"data.sources: another answer than in an earlier row with an equal prompt have {self.contradicted.of(self.total)}"
        return RowContents([said])

    def _answers(self, prompt: Prompt) -> tuple[str, ...]:
        """Returns the reference answers in a form in which different ones are never equal; none if that is not known."""
        try:
            found = self.options.of_references(prompt)
        except DataError:  # rows without a usable answer are reported where they are tried
            return ()
        numbers = [number_alone(one) for one in found]
        if all(numbers):
            return tuple(f"{number[0].normalize()}" for number in numbers if number is not None)
        return tuple(one.casefold() for one in found) if self.as_texts else ()


def _options(part: FunctionPart) -> Extraction:
    """Returns where the answer is in the reference answers of a part."""
    fields = Extraction.model_fields
    return Extraction.model_validate({name: value for name, value in part.options.items() if name in fields})


def _score_keys(entry: Mapping[str, Any], source: FileSource) -> Iterator[tuple[str, str]]:
    """Yields the keys of the scores of both responses, the preferred one's first."""
    words = dict.fromkeys([("chosen", "rejected"), (source.chosen_field, source.rejected_field)])
    for key in entry:
        if SCORES.search(key):
            for one, other in words:
                if one in key and (counterpart := key.replace(one, other)) != key and counterpart in entry:
                    yield key, counterpart
                    break


def _number(value: Any) -> float | None:
    """Returns a value as a number; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _plain(reply: Messages) -> list[Any]:
    """Returns messages as JSON values, without the white space around their texts, which most templates drop."""
    return [[value.strip() if isinstance(value, str) else value for value in message.plain()] for message in reply]


def _question(prompt: Prompt) -> list[Any]:
    return [prompt.text.strip().casefold(), *prompt.media, *(dict(tool) for tool in prompt.tools)]


def _digest(value: Any) -> bytes:
    return hashlib.sha256(canonical_json(value).encode()).digest()[:DIGEST_BYTES]
