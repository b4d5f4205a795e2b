"""A Prefect client for what a session reports but does not need: a server that is away costs a moment, never the run.

Prefect's own client repeats a request for over a minute once a server has stopped answering. This one tries each request
once, for a few seconds at most. After a failure it leaves requests out for a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import SettingsContext
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings

from flows.prefect_io.prefect_client import AWAY, is_overloaded, server_trouble

log = logging.getLogger("yatt_core.flow")
REQUEST_SECONDS = 5.0
QUIET_SECONDS = 15.0
"""How long requests are left out after one that failed."""
UNANSWERED = (*AWAY, ValueError)
"""Errors of a request without a usable answer; a parser's, if another program answers, such as a proxy's login page."""
R = TypeVar("R")


class OptionalClient:
    """Sends requests whose results the caller can do without.

    warn, say: report to the user that the server is away, once, and that it is back.
    settle: takes the warning back, once it is over.

    A server that answers, but cannot serve a request, as one under load, is reported only if it still cannot the next time.
    """

    def __init__(
        self,
        client: SyncPrefectClient,
        warn: Callable[[str], None],
        say: Callable[[str], None],
        settle: Callable[[str], None],
    ) -> None:
        self._client = client
        self._warn = warn
        self._say = say
        self._settle = settle
        self._warned = ""
        self._has_failed = False
        current = SettingsContext.get()
        assert current is not None, "prefect always has settings"
        settings = get_current_settings().copy_with_update({PREFECT_CLIENT_MAX_RETRIES: 0})
        self._settings = SettingsContext(profile=current.profile, settings=settings)
        self._again_at: float | None = None

    @classmethod
    @contextmanager
    def open(
        cls, warn: Callable[[str], None], say: Callable[[str], None], settle: Callable[[str], None] = lambda _: None
    ) -> Iterator[OptionalClient]:
        """Yields a client of the configured server, which need not answer."""
        with get_client(sync_client=True, httpx_settings={"timeout": REQUEST_SECONDS}) as client:
            yield cls(client, warn, say, settle)

    @property
    def answers(self) -> bool:
        """True unless the last request failed."""
        return self._again_at is None

    def ask(self, request: Callable[[SyncPrefectClient], R]) -> R | None:
        """Returns the server's answer; None if it did not answer, refused, is not Prefect's, or has just failed."""
        if self._again_at is not None and time.monotonic() < self._again_at:
            return None
        try:
            with self._settings:
                answer = request(self._client)
        except UNANSWERED as error:
            self._failed(error)
            return None
        if self._again_at is not None:
            self._again_at = None
            self._has_failed = False
            if self._warned:
                self._settle(self._warned)
                self._warned = ""
                self._say("Prefect's server answers again")
        return answer

    def _failed(self, error: Exception) -> None:
        trouble = server_trouble(error)
        log.warning("a report to Prefect was skipped: %s", trouble)
        may_pass = is_overloaded(error) and not self._has_failed
        self._has_failed = True
        if not self._warned and not may_pass:
            self._warned = f"the run continues without Prefect for now: {trouble}"
            self._warn(self._warned)
        self._again_at = time.monotonic() + QUIET_SECONDS
