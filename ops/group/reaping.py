"""The keeper's rounds over Prefect: they close flow runs whose process is dead (`flows.schedule.reaper`), and resume those that
waited at a gate which is decided (`flows.schedule.suspension`). They also schedule maintenance (`ops.group.maintenance`) and,
once, apply the automation that closes flow runs of dead machines (`flows.schedule.dead_machines`).

They run in a thread of their own, so that an unresponsive Prefect server does not delay deliveries to MLflow.
Consumes the ledger and Prefect's address from the environment; produces the state `Crashed` and a line in the
log for each closed or resumed flow run.
"""

from __future__ import annotations

import logging
import os
import threading

from db.core.errors import LedgerError
from db.ledger import Ledger
from flows.prefect_io.prefect_server import PREFECT_VARIABLE, use_server
from flows.run.home import Home
from yatt_core.logs import redact

ROUND_SECONDS = 30.0
log = logging.getLogger("yatt.keeper")


def start_reaping(home: Home, ended: threading.Event) -> threading.Thread:
    """Starts the rounds, which continue until `ended` is set."""
    use_server(home.group, os.environ[PREFECT_VARIABLE].removesuffix("/api"))
    thread = threading.Thread(target=_go_round, args=(home, ended), name="reaper", daemon=True)
    thread.start()
    return thread


class Automated:
    """The automation that closes flow runs of dead machines: applied once, in the first round in which the server takes it."""

    def __init__(self) -> None:
        self._applied = False
        self._said = ""

    def keep(self) -> None:
        """Applies the automation. A failure is logged once, tried again in the next round, and holds up nothing else."""
        from flows.prefect_io.prefect_client import AWAY, server_trouble
        from flows.schedule.dead_machines import NAME, apply_automation

        if self._applied:
            return
        try:
            done = apply_automation()
        except AWAY as error:
            trouble = server_trouble(error)
            if trouble != self._said:
                log.warning("the automation %r is not applied: %s", NAME, trouble)
            self._said = trouble
            return
        self._applied = True
        if done:
            log.info("%s the automation %r", done, NAME)


def _go_round(home: Home, ended: threading.Event) -> None:
    from flows.prefect_io.prefect_client import AWAY, server_trouble
    from flows.schedule.reaper import reap
    from flows.schedule.suspension import resume_windows
    from ops.group.maintenance import Scheduled

    scheduled = Scheduled(home)
    automated = Automated()
    try:
        while not ended.is_set():
            try:
                with Ledger.open(home.ledger, migrate=False) as ledger:
                    for closed in reap(ledger, home):
                        log.info("%s: closed flow run %s: %s", closed.run, closed.flow_run, closed.why)
                    for flow_run in resume_windows(ledger):
                        log.info("resumed flow run %s, whose approval is decided", flow_run)
                scheduled.keep()
                automated.keep()
            except AWAY as error:
                log.warning("dead and suspended flow runs stay as they are: %s", server_trouble(error))
            except LedgerError as error:
                log.warning("dead and suspended flow runs stay as they are: %s", redact(str(error)))
            ended.wait(ROUND_SECONDS)
    finally:
        # After an unexpected error, the keeper ends and is restarted.
        ended.set()
