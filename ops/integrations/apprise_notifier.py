"""Fills in the flow's `Notifier` over Apprise: webhooks, e-mail, chat.

Consumes the addresses in the environment variable that the spec names, and notices. Addresses are secrets: errors name their
places in the variable, and what a service said is stripped of every part of them. What was taken by some is sent again to the
others alone, as long as the process lives; behind a crash it may reach somebody twice.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import apprise

from flows.delivery.notifications import Message, message_of
from flows.run.protocols import Notice, Told
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.guards import NotifySpec

APPRISE = "apprise"
EXAMPLES = "jsons://host/path, mailtos://user:password@host, slack://..."
SHORTEST_SECRET = 3
"""Parts of an address that are shorter hide nothing, and stand in every sentence."""


class AppriseNotifier:
    """Sends to all addresses, each by its own service. variable: where they are from, for errors."""

    def __init__(self, addresses: Sequence[str], variable: str) -> None:
        _silence()
        self._addresses, self._variable = tuple(addresses), variable
        asset = apprise.AppriseAsset(
            app_id="YATT", app_desc="YATT", storage_mode=apprise.PersistentStoreMode.MEMORY, async_mode=False
        )
        self._services: list[apprise.NotifyBase] = []
        for place, address in enumerate(addresses):
            service = apprise.Apprise.instantiate(address, asset=asset)
            if service is None:
                raise ConfigurationError(
                    f"{self._place(place)} is none that can be sent to; right would be such as {EXAMPLES}"
                )
            self._services.append(service)
        self._taken = [frozenset[str]() for _ in addresses]
        """By address, the keys of the notices that it took and that are not everywhere yet."""

    @classmethod
    def from_environment(cls, spec: NotifySpec | None) -> AppriseNotifier | None:
        """None where nobody is to be told. Raises `ConfigurationError` where the variable holds no usable addresses."""
        if spec is None:
            return None
        addresses = os.environ.get(spec.environment, "").split()
        if not addresses:
            raise ConfigurationError(
                f"guards.notify.environment: the environment variable {spec.environment} is not set; put addresses into it, with "
                f"blanks between them, such as {EXAMPLES}, or set guards.notify to null"
            )
        return cls(addresses, spec.environment)

    def notify(self, run: str, notices: Sequence[Notice]) -> Told:
        """Sends each address one message of what it has not taken yet."""
        keys, failures = frozenset(notice.key for notice in notices), list[str]()
        for place in range(len(self._services)):
            lacking = [notice for notice in notices if notice.key not in self._taken[place]]
            reason = self._send(place, message_of(run, lacking)) if lacking else None
            if reason is None:
                self._taken[place] = keys
            else:
                self._taken[place] &= keys
                failures.append(f"{self._place(place)}: {reason}")
        return Told(keys.intersection(*self._taken), tuple(failures))

    def _send(self, place: int, message: Message) -> str | None:
        """Why an address did not take the message; None if it did."""
        with _captured() as lines:
            taken = self._services[place].notify(
                body=message.body, title=message.title, notify_type=apprise.NotifyType.WARNING
            )
        return None if taken else _without(self._addresses[place], " ".join(lines)) or "not taken"

    def _place(self, place: int) -> str:
        return f"address {place + 1} of {len(self._addresses)} in ${self._variable}"


def _silence() -> None:
    """What Apprise logs may hold addresses: it goes to nobody, until it is captured."""
    logger = logging.getLogger(APPRISE)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


class _Lines(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _captured() -> Iterator[list[str]]:
    """What Apprise says is wrong."""
    handler = _Lines()
    logger = logging.getLogger(APPRISE)
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


def _without(address: str, text: str) -> str:
    """The text without any part of an address, as it is written or meant."""
    _, _, secret = address.partition("://")
    quoted = (secret, *re.split(r"[^\w.~%-]+", secret))
    parts = {part for form in quoted for part in (form, unquote(form), *re.split(r"[^\w.~-]+", unquote(form)))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= SHORTEST_SECRET:
            text = text.replace(part, "***")
    return text
