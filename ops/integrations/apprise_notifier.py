"""Implements the flow's `Notifier` with Apprise: webhooks, e-mail, chat.

Consumes the addresses where the spec says that they are, and notices. Addresses are secrets:
errors refer to them by position, and every part of an address is removed from a service's error
messages. A notice that only some addresses accepted is sent again only to the others, as long as the process
lives; after a crash, some people may receive it twice.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from flows.delivery.notifications import Notification, message_of
from flows.prefect_io.secret_blocks import read_block
from flows.run.protocols import Notice, NotificationResult
from yatt_core.errors import ConfigurationError
from yatt_core.logs import keep_secret
from yatt_core.secret_references import resolve
from yatt_core.spec.sections.guards import NotifySpec

if TYPE_CHECKING:
    import apprise

APPRISE = "apprise"
EXAMPLES = "jsons://host/path, mailtos://user:password@host, slack://..."
SHORTEST_SECRET = 3
"""Shorter parts of an address are not removed: they reveal nothing and occur in ordinary words."""


class AppriseNotifier:
    """Sends notices to all addresses, each through the service that it names.

    origin: where the addresses are from, for errors.
    """

    def __init__(self, addresses: Sequence[str], origin: str) -> None:
        import apprise  # most runs notify nobody, and it has a module for each of its services

        _silence()
        self._addresses = tuple(addresses)
        self._origin = origin
        asset = apprise.AppriseAsset(
            app_id="YATT", app_desc="YATT", storage_mode=apprise.PersistentStoreMode.MEMORY, async_mode=False
        )
        self._services: list[apprise.NotifyBase] = []
        for place, address in enumerate(addresses):
            service = apprise.Apprise.instantiate(address, asset=asset)
            if service is None:
                raise ConfigurationError(
                    f"{self._place(place)} is not a valid address; expected something like {EXAMPLES}"
                )
            self._services.append(service)
        self._taken = [frozenset[str]() for _ in addresses]
        """For each address, the keys of the notices that it has accepted while other addresses have not."""

    @classmethod
    def from_environment(cls, spec: NotifySpec | None) -> AppriseNotifier | None:
        """Returns the notifier of a spec; None if the spec has none.

        Raises `ConfigurationError` if there are no usable addresses where the spec says.
        """
        if spec is None:
            return None
        try:
            addresses = resolve(spec.addresses, "guards.notify.addresses", read_block).split()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}: addresses separated by spaces, such as {EXAMPLES}; or set guards.notify to null"
            ) from None
        for address in addresses:
            keep_secret(address)
        return cls(addresses, str(spec.addresses))

    def notify(self, run: str, notices: Sequence[Notice]) -> NotificationResult:
        """Sends each address one message with the notices it has not accepted yet."""
        keys = frozenset(notice.key for notice in notices)
        failures = list[str]()
        for place in range(len(self._services)):
            lacking = [notice for notice in notices if notice.key not in self._taken[place]]
            reason = self._send(place, message_of(run, lacking)) if lacking else None
            if reason is None:
                self._taken[place] = keys
            else:
                self._taken[place] &= keys
                failures.append(f"{self._place(place)}: {reason}")
        return NotificationResult(keys.intersection(*self._taken), tuple(failures))

    def _send(self, place: int, message: Notification) -> str | None:
        """Returns why an address did not accept the message; None if it did."""
        from apprise import NotifyType

        with _captured() as lines:
            taken = self._services[place].notify(body=message.body, title=message.title, notify_type=NotifyType.WARNING)
        return None if taken else _without(self._addresses[place], " ".join(lines)) or "not accepted"

    def _place(self, place: int) -> str:
        return f"address {place + 1} of {len(self._addresses)} in {self._origin}"


def _silence() -> None:
    """Discards Apprise's log records, which may contain addresses, unless they are captured."""
    logger = logging.getLogger(APPRISE)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


class _Lines(logging.Handler):
    """Collects log messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _captured() -> Iterator[list[str]]:
    """Collects the problems that Apprise reports."""
    handler = _Lines()
    logger = logging.getLogger(APPRISE)
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)


def _without(address: str, text: str) -> str:
    """Returns the text without any part of an address, as written or percent-decoded."""
    _, _, secret = address.partition("://")
    quoted = (secret, *re.split(r"[^\w.~%-]+", secret))
    parts = {part for form in quoted for part in (form, unquote(form), *re.split(r"[^\w.~-]+", unquote(form)))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= SHORTEST_SECRET:
            text = text.replace(part, "***")
    return text
