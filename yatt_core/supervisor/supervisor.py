"""The supervisor: a small process with its own session that owns a run's local services and outlives the driver.

`python -m yatt_core.supervisor.supervisor --folder RUN` reads `RUN/supervisor/request.json`, starts the
services in parallel (each as soon as the services it needs are ready), restarts those that die, and publishes
`state.json` at every change. It ends all of them, by pid, when `stop` appears, on SIGTERM, or when
`driver.json` has not been touched for `grace` seconds. It knows nothing about the services' purpose.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from yatt_core.errors import InfrastructureError
from yatt_core.file_lock import file_lock
from yatt_core.supervisor.process import ProcessIdentity, end_sessions
from yatt_core.supervisor.runner import ServiceRunner
from yatt_core.supervisor.services import RestartPolicy, ServiceState, ending_order
from yatt_core.supervisor.state import (
    DriverWatch,
    SupervisorFiles,
    SupervisorRequest,
    SupervisorState,
    read_state,
    write_state,
)

TICK_SECONDS = 0.1
TOUCH_SECONDS = 1.0

logger = logging.getLogger("yatt.supervisor")


class Supervisor:
    """The loop over the services of one request.

    ports: each service's ports under an earlier supervisor that was killed.
    """

    def __init__(
        self,
        files: SupervisorFiles,
        request: SupervisorRequest,
        policy: RestartPolicy,
        ports: Mapping[str, Mapping[str, int]],
    ) -> None:
        self._files = files
        self._request = request
        self._identity = ProcessIdentity.current()
        self._runners = {
            service.name: ServiceRunner(service, files.mark, policy, ports.get(service.name))
            for service in request.services
        }
        self._ending_order = ending_order(request.services)
        self._driver = DriverWatch(files.driver)
        self._signalled = ""
        self._ending = ""
        self._unpublished = True
        self._touched_at = 0.0

    def handle_signal(self, number: int, _frame: FrameType | None) -> None:
        """Asks the loop to end."""
        self._signalled = f"signal {signal.Signals(number).name}"

    def run(self) -> None:
        """Serves until told to end or until the driver is gone; returns when none of its processes is left."""
        self._publish()
        while not (reason := self._reason_to_end()):
            for runner in self._runners.values():
                if self._may_step(runner) and runner.step(time.monotonic()):
                    logger.info("%s: %s %s", runner.spec.name, runner.life.state, runner.life.reason)
                    self._unpublished = True
            self._publish()
            time.sleep(TICK_SECONDS)
        logger.info("ending: %s", reason)
        self._end(reason)

    def _may_step(self, runner: ServiceRunner) -> bool:
        """Returns False for a service that cannot start yet because a service it needs is not ready."""
        needed = (self._runners[name].life.state for name in runner.spec.needs)
        return runner.life.is_running() or all(state is ServiceState.READY for state in needed)

    def _reason_to_end(self) -> str:
        if self._signalled:
            return self._signalled
        if not self._files.root.exists():
            return "the run folder is gone"
        if self._files.stop.exists():
            return "told to stop"
        if self._request.grace is not None and self._driver.silence() > self._request.grace:
            return self._abandoned(self._request.grace)
        return ""

    def _abandoned(self, grace: float) -> str:
        """Returns why the supervisor ends without a driver, for the state file; empty while a driver is attaching.

        An attaching driver holds the lock and touches the driver's file: either it sees that the supervisor is
        ending, or the supervisor sees the touch.
        """
        with file_lock(self._files.lock) as alone:
            if not alone or self._driver.silence() <= grace:
                return ""
            self._ending = f"no sign of a driver for {grace:g} s"
            self._write()
            return self._ending

    def _publish(self) -> None:
        """Writes the state if it changed, else touches it; a full disk must not end the services."""
        if self._unpublished:
            self._write()
        elif time.monotonic() - self._touched_at > TOUCH_SECONDS:
            try:
                os.utime(self._files.state)
                self._touched_at = time.monotonic()
            except OSError:
                self._unpublished = True

    def _write(self, ended: str = "") -> None:
        if not self._files.root.exists():
            return
        reports = {name: runner.report() for name, runner in self._runners.items()}
        state = SupervisorState(
            identity=self._identity,
            request_digest=self._request.digest,
            services=reports,
            ended=ended,
            ending=self._ending,
        )
        try:
            write_state(self._files, state)
        except InfrastructureError as error:
            logger.warning("%s", error)
            self._unpublished = True
        else:
            self._unpublished = False

    def _end(self, reason: str) -> None:
        self._ending = reason
        self._write()
        for step in self._ending_order:
            with ThreadPoolExecutor(max_workers=len(step)) as pool:
                list(pool.map(lambda name: self._runners[name].end(), step))
            self._write()
        end_sessions([], self._files.mark, grace=0.0)
        self._write(ended=reason)


def ports_of_killed(state: SupervisorState | None) -> Mapping[str, Mapping[str, int]]:
    """Returns the services' ports under a supervisor that was killed; a driver may still expect services on them."""
    if state is None or state.ended:
        return {}
    return {name: service.ports for name, service in state.services.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the supervisor of a run folder until it ends."""
    parser = argparse.ArgumentParser(description="Runs the local services of a YATT run.")
    parser.add_argument("--folder", type=Path, required=True, help="the run folder")
    files = SupervisorFiles.of(parser.parse_args(arguments).folder)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    request = SupervisorRequest.from_json(json.loads(files.request.read_text()))
    supervisor = Supervisor(files, request, RestartPolicy(), ports_of_killed(read_state(files)))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.handle_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
