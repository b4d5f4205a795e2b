"""Tries the reference answer and the tests of rows before a run draws them: those that nothing can be compared with.

Consumes a spec and prompts. Produces what is wrong with their rows: reference answers that cannot be read or that no response
can match, tests that are none, and tests that an empty program passes. What takes long is tried once: its verdict is kept in
the home folder.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from ops.preflight.reward_trial import refuses_faults
from ops.preflight.row_pool import RowTrial, try_jobs
from ops.preflight.tried_rows import TriedRows
from ops.presentation.words import duration
from yatt_core.datasets.sources import first_prompts
from yatt_core.digests import json_digest
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.prompts.prompt import Prompt
from yatt_core.rewards.builtin import ExactMatch
from yatt_core.rewards.calls import RewardOutcome
from yatt_core.rewards.code_cases import CallCase, CaseKeys, ProgramCase, row_tests
from yatt_core.rewards.extraction import Extraction
from yatt_core.rewards.functions import load_part
from yatt_core.rewards.non_answers import is_non_answer
from yatt_core.rewards.options import Options
from yatt_core.rewards.possible_answers import why_never_matched
from yatt_core.rewards.registry import FunctionName
from yatt_core.rewards.written_numbers import number_alone, with_plain_numbers
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.scheme import PROGRAMS, FunctionPart

CHECKS = "checks"
"""Folder of the verdicts in the home folder."""
ROWS_AT_THE_START = 64
"""Rows of each source that are tried before a run starts; `yatt check` tries all."""
SHOWN = 3
"""Rows that a message names."""
DISTINCT_ANSWERS = 10_000
"""Reference answers whose verdict is kept: many rows have few of them."""
KEPT_AT_ONCE = 256
"""Verdicts that are written at once, and lost if a check is interrupted."""
PAUSE_SECONDS = 1.0
"""Between two messages about the progress."""
EMPTY_PASSES = "its tests pass without any code, so they test nothing"
PARSED = "math_equal"
SLOW = {PARSED: "yatt_core.rewards.mathematics:check_row", PROGRAMS: "yatt_core.rewards.code_tests:check_rows"}
"""The functions that try a row, by the reward function."""
COMPARED = ("exact_match", PARSED)
Keys = TypeVar("Keys", bound=Options)
Facts = list[Any]
LOGGER = __name__
"""Name of the logger of the progress, which an installation changes."""
_LOGGER = logging.getLogger(LOGGER)


@dataclass(slots=True)
class RowFaults:
    """What is wrong with rows for one part.

    count: number of rows.
    first: place and fault of the first of them.
    """

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, prompt: Prompt, said: str) -> None:
        """Counts a row."""
        self.count += 1
        if len(self.first) < SHOWN:
            row = f"row {prompt.prompt_id}: "
            self.first.append(row + said.removeprefix(row))


@dataclass(frozen=True, slots=True)
class RowsTried:
    """The result of trying rows.

    tried, of: number of rows that were tried, and of all rows.
    warnings: what is wrong with rows for parts whose failures only mark samples.
    """

    tried: int
    of: int
    warnings: Sequence[str] = ()


def checked_parts(spec: RunSpec) -> list[FunctionPart]:
    """Returns the parts that compare with reference answers, or run tests."""
    return [part for part in spec.rewards.functions if part.function in (*COMPARED, PROGRAMS)]


def _loads(part: FunctionPart) -> bool:
    """Returns whether a part's function can be called; if not, the check of what a spec names says why."""
    try:
        load_part(part)
    except ConfigurationError:
        return False
    return True


def try_first_rows(spec: RunSpec, home: Path) -> RowsTried:
    """Tries the first rows of each source. Raises as `try_rows` does."""
    if not checked_parts(spec):
        return RowsTried(0, 0)
    prompts = first_prompts(spec.data, spec.seed, ROWS_AT_THE_START)
    return try_rows(spec, prompts, len(prompts), home)


def try_rows(spec: RunSpec, prompts: Iterable[Prompt], total: int, home: Path, sample: int | None = None) -> RowsTried:
    """Tries rows, and logs the progress.

    prompts: all rows, `total` of them.
    sample: number of rows to try, spread evenly; None: all.

    Raises `ConfigurationError` with the number and the first of the rows that cannot be used, unless the part's failures only
    mark samples.
    """
    parts = [part for part in checked_parts(spec) if _loads(part)]
    tried = total if sample is None else min(sample, total)
    if not parts:
        return RowsTried(0, total)
    _LOGGER.info("trying the reference answers and tests of %s rows", f"{tried:,}")
    chosen = (prompt for row, prompt in enumerate(prompts) if (row + 1) * tried // total > row * tried // total)
    faults = [RowFaults() for _ in parts]
    known = TriedRows(home / CHECKS)
    progress = _Progress(tried)
    sound = list[str]()
    for job, outcome in try_jobs(progress.pending(_jobs(parts, progress.read(chosen), faults, known)), progress.tell):
        progress.waiting -= 1
        said = _said(job, outcome)
        if said:
            faults[job.number].add(job.prompt, said)
        else:
            sound.append(job.digest)
        if len(sound) == KEPT_AT_ONCE:
            known.keep(sound)
            sound.clear()
    known.keep(sound)
    return RowsTried(tried, total, list(_warnings(parts, faults, tried)))


def _jobs(
    parts: Sequence[FunctionPart], prompts: Iterable[Prompt], faults: Sequence[RowFaults], known: TriedRows
) -> Iterator[RowTrial]:
    """Yields the rows that take long to try; the faults of all others are counted."""
    looks = [_look(part) for part in parts]
    versions = {PARSED: version("math-verify") if PARSED in {part.function for part in parts} else ""}
    for prompt in prompts:
        for number, (part, look) in enumerate(zip(parts, looks, strict=True)):
            try:
                facts = look(prompt)
            except DataError as error:
                faults[number].add(prompt, str(error))
                continue
            if facts is None:
                continue
            name = part.function or ""
            digest = json_digest([name, versions.get(name, ""), part.options, facts])
            if not known.knows(digest):
                function = FunctionName(f"rewards.parts {part.name!r}", SLOW[name], part.options)
                yield RowTrial(
                    number=number,
                    digest=digest,
                    prompt=_needed(prompt, name),
                    function=function,
                    seconds=part.timeout_seconds,
                )


def _look(part: FunctionPart) -> Callable[[Prompt], Facts | None]:
    """Returns a function that returns what has to be tried of a row, or None; it raises `DataError` for a fault."""
    if part.function == PROGRAMS:
        keys = _of(CaseKeys, part.options)
        return lambda prompt: _untried_tests(prompt, keys)
    if part.function == PARSED:
        extraction = _of(Extraction, part.options)
        return lambda prompt: _untried_references(prompt, extraction)
    options = _of(ExactMatch, part.options)
    why_never = functools.lru_cache(DISTINCT_ANSWERS)(lambda answer: why_never_matched(answer, options))

    def tried_at_once(prompt: Prompt) -> None:
        reasons = [why_never(answer) for answer in options.of_references(prompt)]
        if all(reasons):
            raise DataError(reasons[0])

    return tried_at_once


def _untried_references(prompt: Prompt, extraction: Extraction) -> Facts | None:
    """Returns the reference answers that are no plain numbers, which need no parser.

    Raises `DataError` for what stands for a missing answer: its letters would be read as a product.
    """
    references = [with_plain_numbers(one) for one in extraction.of_references(prompt)]
    if all(is_non_answer(one) for one in references):
        raise DataError(f"the reference answer is {references[0]!r:.100}, which stands for a missing one")
    return [one for one in references if number_alone(one) is None] or None


def _untried_tests(prompt: Prompt, keys: CaseKeys) -> Facts | None:
    """Returns the tests of which only a trial shows whether an empty program passes them.

    Without any code, a program prints nothing, and there is no function to call.
    """
    tests = row_tests(prompt, keys)
    if tests.setup or tests.prefix or any(isinstance(case, str) for case in tests.cases):
        return [[_plain(case) for case in tests.cases], tests.setup, tests.prefix]
    if all(isinstance(case, ProgramCase) and not case.expected.strip() for case in tests.cases):
        raise DataError(EMPTY_PASSES)
    return None


def _plain(case: ProgramCase | CallCase | str) -> Any:
    match case:
        case ProgramCase():
            return [case.given, case.expected]
        case CallCase():
            return [case.name, list(case.arguments), list(case.expected)]
        case _:
            return case


def _needed(prompt: Prompt, function: str) -> Prompt:
    """Returns what of a prompt a trial reads: little is sent to another process."""
    return replace(
        prompt, text="", entry=prompt.entry if function == PROGRAMS else {}, messages=(), reply=(), tools=(), media=()
    )


def _of(model: type[Keys], options: Mapping[str, Any]) -> Keys:
    """Returns those of a part's options that a model has; all of them have been checked before."""
    return model.model_validate({name: value for name, value in options.items() if name in model.model_fields})


def _said(job: RowTrial, outcome: RewardOutcome) -> str:
    """Returns what is wrong with a row that was tried; empty if nothing is."""
    if job.function.function == SLOW[PROGRAMS] and not outcome.failed:  # a test that takes too long is not passed
        return EMPTY_PASSES if outcome.value else ""
    return outcome.reason.removeprefix("raised DataError: ")


def _warnings(parts: Sequence[FunctionPart], faults: Sequence[RowFaults], tried: int) -> Iterator[str]:
    """Yields warnings. Raises `ConfigurationError` for parts whose failures stop a run."""
    lines = [
        (
            refuses_faults(part),
            f"rewards.parts {part.name!r}: {found.count:,} of {tried:,} rows cannot be used: {rows}",
        )
        for part, found in zip(parts, faults, strict=True)
        if found.count and (rows := "; ".join(found.first) + ("; ..." if found.count > SHOWN else ""))
    ]
    if stopping := [line for stops, line in lines if stops]:
        raise ConfigurationError("\n".join(f"{line}; correct or remove them" for line in stopping))
    yield from (line for _, line in lines)


class _Progress:
    """Logs how many rows have been tried, with pauses.

    waiting: number of rows whose trial has not ended.
    """

    def __init__(self, total: int) -> None:
        self.waiting = 0
        self._total = total
        self._read = 0
        self._began = time.monotonic()
        self._told = self._began

    def read(self, prompts: Iterable[Prompt]) -> Iterator[Prompt]:
        """Yields the prompts, and counts them."""
        for prompt in prompts:
            yield prompt
            self._read += 1
            self.tell()

    def pending(self, jobs: Iterable[RowTrial]) -> Iterator[RowTrial]:
        """Yields the jobs, and counts them as waiting."""
        for job in jobs:
            self.waiting += 1
            yield job

    def tell(self) -> None:
        """Logs the progress if the last message was long enough ago."""
        now = time.monotonic()
        done = self._read - self.waiting
        if now < self._told + PAUSE_SECONDS or done <= 0:
            return
        self._told = now
        left = (now - self._began) / done * (self._total - done)
        _LOGGER.info("tried %s of %s rows, about %s left", f"{done:,}", f"{self._total:,}", duration(left))
