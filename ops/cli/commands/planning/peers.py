"""The part of `yatt init` that begins from a configuration of verl, TRL or OpenRLHF.

Consumes what was asked for. Writes the spec, and says what became of each of the file's keys; or one JSON object.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.presentation.output import message, write, write_json
from ops.presentation.transfer import Transfer
from ops.starter.peers.entries import KeyVerdict
from ops.starter.peers.secrets import without_secrets
from ops.terminal.options import Output
from yatt_core.counting import many

if TYPE_CHECKING:
    from ops.starter.peers.starting import InitOptions, InitResult
    from ops.starter.understanding import Understanding

SHOWN = 70
"""Maximum number of characters of a value on a terminal; JSON has all of it."""


def start(folder: Path, wanted: InitOptions, output: Output) -> None:
    """Writes the spec and says what became of each key."""
    from ops.starter.peers.starting import start_from
    from ops.starter.texts import as_json

    with Transfer() as tell:
        settling = None if wanted.settling is None else replace(wanted.settling, tell=tell)
        started = start_from(folder, replace(wanted, settling=settling))
    if output is Output.JSON:
        sources = None if started.meaning is None else as_json(started.meaning)
        write_json({**_document(started), "sources": sources})
        return
    for line in _said(started, str(wanted.file)):
        message(line)
    for path in started.paths:
        write(f"wrote {path}")
    command = shlex.quote(str(started.paths[0]))
    write(f"next: yatt check {command}")
    write(f"then: yatt train {command}")


def _document(started: InitResult) -> dict[str, Any]:
    translation = started.translation
    lists = {name.value: [_as_json(verdict) for verdict in verdicts] for name, verdicts in translation.lists.items()}
    return {
        "spec": str(started.paths[0]),
        "reward": str(started.paths[1]) if len(started.paths) > 1 else None,
        "peer": translation.program.label,
        "program": translation.program.name,
        "objective": translation.program.learns,
        **lists,
        "defaults": [_as_json(verdict) for verdict in translation.defaults],
    }


def _as_json(verdict: KeyVerdict) -> dict[str, Any]:
    return {
        "key": verdict.key,
        "value": without_secrets(verdict.value),
        "line": verdict.line,
        "to": without_secrets(dict(verdict.to)),
        "why": verdict.why or None,
    }


def _said(started: InitResult, file: str) -> Iterator[str]:
    """Yields the lists, for people."""
    translation = started.translation
    label = translation.program.label
    count = sum(len(verdicts) for verdicts in translation.lists.values())
    yield f"{file}: {many(count, 'key')} of {label} ({translation.program.name})"
    titles = {
        "taken": "taken",
        "different": "different here",
        "without_counterpart": "without a counterpart",
        "unknown": f"not known to YATT as keys of {label}",
    }
    for name, verdicts in translation.lists.items():
        if verdicts:
            yield f"{titles[name]}: {len(verdicts)}"
            yield from (f"  {_line(verdict)}" for verdict in verdicts)
    if translation.defaults:
        yield f"defaults of {label} that the file leaves unsaid, and that are not YATT's: {len(translation.defaults)}"
        yield from (f"  {_line(verdict)}" for verdict in translation.defaults)
    if started.meaning is not None:
        yield from _recognised(started.meaning)


def _recognised(meaning: Understanding) -> Iterator[str]:
    """Yields what the rows were recognised as, and what follows from them."""
    for source in meaning.sources:
        more = "" if source.look.complete else "more than "
        yield f"{source.look.place.named}: {more}{many(len(source.look.rows), 'row')}, recognised as {source.recognised.shape}"
        yield from (f"  {sentence}" for sentence in (*source.recognised.reasons, *source.says))
    if meaning.reward is not None:
        yield f"reward: {meaning.reward.function}, reads {meaning.reward.reads}; it follows from the rows"
    if meaning.system_prompt is not None:
        yield "system message: asks for what this reward reads; the peer's run had none, so drop it if the prompts ask themselves"


def _line(verdict: KeyVerdict) -> str:
    place = "" if verdict.line is None else f"line {verdict.line}: "
    to = f" -> {_written(without_secrets(dict(verdict.to)))}" if verdict.to else ""
    why = f" ({without_secrets(verdict.why)})" if verdict.why else ""
    return f"{place}{verdict.key} = {_short(without_secrets(verdict.value))}{to}{why}"


def _written(to: Mapping[str, Any]) -> str:
    return ", ".join(f"{path}: {_short(value)}" for path, value in to.items())


def _short(value: Any) -> str:
    from ops.starter.yaml_lines import printable, scalar

    text = printable(str(value) if isinstance(value, dict | list) else scalar(value))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
