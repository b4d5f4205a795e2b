"""The spans of this process: begun and ended around work, without effect while tracing is off.

Consumes the settings; produces spans, which nest by context. Attributes are names, numbers and outcomes, never texts of
prompts or responses.
"""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yatt_core.logs import redact
from yatt_core.tracing.identity import SpanPlace
from yatt_core.tracing.settings import TracingSettings

if TYPE_CHECKING:
    # Not at run time: it imports OpenTelemetry, which is optional.
    from yatt_core.tracing.otlp import OtlpOutput, Values

FAILURE_CHARACTERS = 300
_current: contextvars.ContextVar[SpanPlace | None] = contextvars.ContextVar("yatt_span", default=None)
_ids = random.SystemRandom()


@dataclass(slots=True)
class _Process:
    """The output of this process; None while tracing is off."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    output: OtlpOutput | None = None
    settings: TracingSettings | None = None
    attributes: Values = field(default_factory=dict)


_process = _Process()


@dataclass(slots=True)
class OpenSpan:
    """A span in progress; whoever does the work may add attributes.

    failure: why the work failed; empty if it did not.
    """

    place: SpanPlace
    attributes: dict[str, str | int | float | bool]
    failure: str = ""


def begin_tracing(settings: TracingSettings, attributes: Values) -> OtlpOutput:
    """Begins to send this process's spans, unless it does already.

    attributes: those of the resource: run, branch and actor.
    """
    from yatt_core.tracing.otlp import OtlpOutput

    with _process.lock:
        if _process.output is None:
            _process.output = OtlpOutput(settings, attributes)
            _process.settings = settings
            _process.attributes = attributes
        return _process.output


def end_tracing(seconds: float) -> int:
    """Sends what is queued, for at most so many seconds, and switches tracing off; returns how much was never sent."""
    with _process.lock:
        output = _process.output
        _process.output = None
        _process.settings = None
    return 0 if output is None else output.end(seconds)


def current_place() -> SpanPlace | None:
    """Returns the place of the innermost span in progress."""
    return _current.get()


def resource_attributes() -> Values:
    """Returns the attributes of this process's resource."""
    return _process.attributes


def current_settings() -> TracingSettings | None:
    """Returns the settings of this process; None while tracing is off."""
    return _process.settings


@contextmanager
def span(
    name: str,
    parent: SpanPlace | None = None,
    kind: str = "internal",
    place: SpanPlace | None = None,
    attributes: Values | None = None,
) -> Iterator[OpenSpan | None]:
    """Traces the work inside; yields None while tracing is off.

    parent: by default the innermost span in progress; without one, nothing is traced.
    place: the span's own place, if it is known beforehand.
    """
    output = _process.output
    above = parent or _current.get()
    if output is None or above is None:
        yield None
        return
    opened = OpenSpan(place or SpanPlace(above.trace_id, _ids.getrandbits(64) or 1), dict(attributes or {}))
    token = _current.set(opened.place)
    start = time.time_ns()
    try:
        yield opened
    except BaseException as error:
        opened.failure = opened.failure or type(error).__name__
        raise
    finally:
        with suppress(ValueError):  # an abandoned generator is closed in another context, which has no such span
            _current.reset(token)
        _finish(name=name, opened=opened, parent=above, start=start, end=time.time_ns(), kind=kind)


def record_span(
    name: str, place: SpanPlace, parent: SpanPlace | None, start_ms: int, end_ms: int, failure: str, attributes: Values
) -> None:
    """Sends a span of work that is over."""
    _finish(
        name=name,
        opened=OpenSpan(place, dict(attributes), failure),
        parent=parent,
        start=start_ms * 1_000_000,
        end=end_ms * 1_000_000,
        kind="internal",
    )


def _finish(name: str, opened: OpenSpan, parent: SpanPlace | None, start: int, end: int, kind: str) -> None:
    output = _process.output
    if output is not None:
        from yatt_core.tracing.otlp import FinishedSpan

        failure = redact(opened.failure)[:FAILURE_CHARACTERS]
        output.span(
            FinishedSpan(
                name=name,
                place=opened.place,
                parent=parent,
                start=start,
                end=end,
                kind=kind,
                attributes=opened.attributes,
                failure=failure,
            )
        )
