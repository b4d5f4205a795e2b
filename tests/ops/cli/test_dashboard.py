"""The end of `yatt dashboard`: no request in progress holds it up, and none leaves a traceback."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

from ops.cli.commands.services.dashboard import _is_news
from tests.services import ROOT

BUSY = """
import threading, time
from ops.cli.commands.services.dashboard import leave
threading.Thread(target=time.sleep, args=(600.0,)).start()
leave()
"""


def test_a_request_in_progress_does_not_hold_up_the_end() -> None:
    ended = subprocess.run([sys.executable, "-c", BUSY], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr
    assert "abandoned" in ended.stderr


def test_only_abandoned_requests_are_not_reported() -> None:
    def record(text: str, error: BaseException | None) -> logging.LogRecord:
        reason = None if error is None else (type(error), error, None)
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, text, None, reason)

    assert not _is_news(record("Exception in ASGI application", asyncio.CancelledError()))
    assert not _is_news(record("Cancel 1 running task(s), timeout graceful shutdown exceeded", None))
    assert _is_news(record("Exception in ASGI application", ValueError("broken")))
    assert _is_news(record("cannot bind", None))
