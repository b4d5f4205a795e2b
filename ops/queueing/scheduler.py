"""Runs the scheduler until SIGTERM: `yatt queue serve`, and the member `queue` of the service group.

Consumes the home's ledger and pools file, and drives no run itself. If another scheduler is alive, it stands by and takes over
once that one has ended. Without a pools file, it waits for one, also if the file is deleted later.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType

from db.core.errors import Fenced, LeaseHeld, LedgerError
from db.ledger import Ledger
from flows.queueing.pools_file import pools_file
from flows.queueing.scheduler import Scheduler
from flows.run.home import Home
from ops.group.members import QUEUE_READY
from ops.queueing.processes import DriverProcesses
from yatt_core.errors import YattError
from yatt_core.logs import redact

ROUND_SECONDS = 1.0
log = logging.getLogger("yatt.queue")


class SchedulerService:
    """The loop of one process.

    ended: set to end it after the current round.
    """

    def __init__(self, home: Home, ended: threading.Event) -> None:
        self._home = home
        self._ended = ended
        self._drivers = DriverProcesses(home)
        self._said = ""

    def run(self) -> None:
        """Schedules until it is told to end; the drivers go on."""
        with Ledger.open(self._home.ledger) as ledger:
            log.info(QUEUE_READY)
            while not self._ended.is_set():
                scheduler = self._lead(ledger)
                if scheduler is not None:
                    self._serve(scheduler)

    def _lead(self, ledger: Ledger) -> Scheduler | None:
        """Returns a scheduler that holds the lease; None after a pause if there are no pools, or another one holds it."""
        if not pools_file(self._home).exists():
            self._say(f"{pools_file(self._home)}: there are no pools yet; `yatt queue init` writes a first file")
            self._ended.wait(ROUND_SECONDS)
            return None
        scheduler = Scheduler(self._home, ledger, self._drivers)
        try:
            scheduler.lead()
        except LeaseHeld as error:
            self._say(f"the queue is scheduled by {error.holder}")
            self._ended.wait(ROUND_SECONDS)
            return None
        except LedgerError as error:
            self._say(redact(str(error)))
            self._ended.wait(ROUND_SECONDS)
            return None
        self._said = ""
        return scheduler

    def _serve(self, scheduler: Scheduler) -> None:
        """Schedules as long as there is a pools file; without one, commands that drive runs may schedule them."""
        while not self._ended.is_set() and pools_file(self._home).exists():
            try:
                scheduler.round()
                self._said = ""
            except Fenced as error:
                self._say(str(error))
                return
            except (LedgerError, YattError) as error:  # a bad pools file, or a ledger that does not answer
                self._say(redact(str(error)))
            self._ended.wait(ROUND_SECONDS)
        try:
            scheduler.resign()
        except LedgerError as error:
            log.warning("the lease ends by itself: %s", redact(str(error)))

    def _say(self, text: str) -> None:
        """Logs what keeps the service from working, once."""
        if text != self._said:
            log.warning("%s", text)
            self._said = text


def serve(home: Home) -> None:
    """Serves a home until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    SchedulerService(home, ended).run()


if __name__ == "__main__":
    serve(Home.locate())
