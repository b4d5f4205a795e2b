"""Starts a dashboard as a separate process, as `yatt dashboard` serves it, and a Chromium without network access.

Consumes a home folder. Produces the address of the dashboard, and a browser whose only way out is `Outside`, which
lets nothing through and records what was requested.
"""

from __future__ import annotations

import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright

from tests.services import ROOT

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
START_SECONDS = 180.0
WIDE = (1280, 900)
NARROW = (390, 844)


CHROMIUMS_OWN = re.compile(r"[ /.](google|googleapis|gvt1)\.com[:/ ]")
"""Hosts that the browser itself contacts for updates and accounts, whatever page it shows; they never answer.
"""


class Outside:
    """A proxy that leads nowhere. asked: the first line of each request for anything that is not on this machine."""

    def __init__(self) -> None:
        asked: list[str] = []

        class Refuse(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked.append(self.rfile.readline(1000).decode("latin-1").strip())

        self.asked = asked
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refuse)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def by_pages(self) -> list[str]:
        """The requests except those that the browser makes by itself."""
        return [line for line in self.asked if not CHROMIUMS_OWN.search(line)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def started_chromium(path: Path, outside: Outside) -> Iterator[Browser]:
    """Starts a browser with a new profile. Loopback never goes through a proxy; everything else goes to `outside`."""
    with sync_playwright() as playwright:
        arguments = [*FLAGS, f"--proxy-server={outside.address}"]
        browser = playwright.chromium.launch(
            executable_path=path, headless=True, args=arguments, timeout=1000 * START_SECONDS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(home: Path) -> Iterator[str]:
    """Serves a dashboard over a home folder; yields its address."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(home), "dashboard", "--port", str(port)]
    log = home.parent / "dashboard.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=stream, env=child_environment())
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(address, process, log)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def child_environment() -> dict[str, str]:
    """Returns the parent's environment, with our packages on the path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def wait_until_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the dashboard answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            httpx.get(f"{address}/health").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no dashboard after {START_SECONDS:.0f} s: {log.read_text()}")
