"""The caller's place in a trace, passed along with each call to an actor, and the actor's own span.

Every call carries the caller's term, itself or in a task. While tracing is on, the term is a `CallTerm`: an integer that,
when it is sent to another process, takes the sender's innermost span and the address for spans with it. The receiver gets
a `ReceivedTerm`, in which an actor opens its span. Off, a term is a plain integer and nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from yatt_core.tracing.identity import SpanPlace
from yatt_core.tracing.log_export import export_logs
from yatt_core.tracing.settings import TracingSettings
from yatt_core.tracing.spans import begin_tracing, current_place, current_settings, resource_attributes, span

if TYPE_CHECKING:
    # Not at run time: it imports OpenTelemetry, which is optional.
    from yatt_core.tracing.otlp import Values

RUN = "yatt.run"
BRANCH = "yatt.branch"


class CallTerm(int):
    """A driver's term that carries the place of whoever sends it."""

    def __reduce__(self) -> tuple[Any, ...]:
        place = current_place()
        settings = current_settings()
        if place is None or settings is None:
            return int, (int(self),)
        return _received, (int(self), tuple(place), settings.endpoint, settings.protocol, _origin())


class ReceivedTerm(int):
    """A term as an actor gets it. Sent on, it carries the actor's own place, else the one that it came with."""

    place: SpanPlace
    settings: TracingSettings
    origin: Values

    def __reduce__(self) -> tuple[Any, ...]:
        place = current_place() or self.place
        return _received, (int(self), tuple(place), self.settings.endpoint, self.settings.protocol, self.origin)


def _received(term: int, place: tuple[int, int], endpoint: str, protocol: Any, origin: Values) -> ReceivedTerm:
    made = ReceivedTerm(term)
    made.place = SpanPlace(*place)
    made.settings = TracingSettings(endpoint, protocol)
    made.origin = origin
    return made


def _origin() -> Values:
    """Returns the attributes that the receiver's resource has as well: the run and its branch."""
    return {name: value for name, value in resource_attributes().items() if name in (RUN, BRANCH)}


def call_term(term: int) -> int:
    """Returns a term to send with calls; it carries the caller's place while tracing is on."""
    return term if current_settings() is None else CallTerm(term)


@contextmanager
def traced_call(actor: str, method: str, term: int) -> Iterator[None]:
    """Traces an actor's work on a call whose term carries the caller's place."""
    if not isinstance(term, ReceivedTerm):
        yield
        return
    output = begin_tracing(term.settings, {**term.origin, "yatt.actor": actor})
    export_logs(output, actor)
    attributes: Values = {"yatt.actor": actor, "yatt.term": int(term)}
    with span(f"{actor.partition('-')[0]}.{method}", term.place, "server", attributes=attributes):
        yield
