"""Refuses values of a peer's file that a spec cannot have, by the keys of the file that they come from.

Consumes a translation. Raises `ConfigurationError` with one line per mistake. Writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from pydantic import ValidationError

from ops.starter.peers.entries import KeyVerdict, List
from ops.starter.peers.translating import Translation
from ops.starter.peers.written import NAME
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec
from yatt_core.spec.reading.mistakes import Mistake, mistakes_in
from yatt_core.spec.reading.sound_parts import further_mistakes

_PATH = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
"""A key of the spec within a sentence."""


def refuse_mistakes(translation: Translation, file: str, named: bool) -> None:
    """Raises for what a spec cannot have, with file, line, key and value.

    file: the peer's.
    named: whether an option gives the name.
    """
    try:
        RunSpec.model_validate(translation.tree)
    except ValidationError as error:
        found = list(mistakes_in(error, RunSpec))
        found += further_mistakes(translation.tree, found)
        lines = [
            f"--name: {mistake.text}"
            if named and mistake.place == (NAME,)
            else f"{_where(mistake, translation, file)}: {mistake}"
            for mistake in found
        ]
        raise ConfigurationError("\n".join(lines)) from None


def _where(mistake: Mistake, translation: Translation, file: str) -> str:
    """Returns the keys that a mistake is about; the file alone if it has none of them."""
    paths = [".".join(map(str, mistake.place))] if mistake.place else _PATH.findall(mistake.text)
    found = [verdict for verdict in _verdicts(translation) if _wrote(verdict, paths)]
    given = [f"line {verdict.line}: {verdict.key} = {verdict.value!r}" for verdict in found if verdict.line is not None]
    if given:
        return f"{file}, {', '.join(dict.fromkeys(given))}"
    label = translation.program.label
    return ": ".join([file, *(f"{verdict.key} = {verdict.value!r}, the default of {label}" for verdict in found[:1])])


def _verdicts(translation: Translation) -> Iterator[KeyVerdict]:
    """Yields what was written, that of the file before the peer's defaults."""
    yield from chain.from_iterable(translation.lists[name] for name in (List.TAKEN, List.DIFFERENT))
    yield from translation.defaults


def _wrote(verdict: KeyVerdict, paths: Sequence[str]) -> bool:
    """Returns whether a verdict wrote one of the paths, or a section that has it."""
    return any(path == written or path.startswith(f"{written}.") for path in paths for written in verdict.to)
