"""A driver process for tests: drives one session and can kill itself in the middle of a phase.

With a flow run, it does what a worker's process does for a window.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from uuid import UUID

from db.core.errors import LeaseHeld
from db.ledger import Ledger
from db.write.phases import Phases
from flows.launch import run_session
from flows.run.creation import load_run
from flows.run.home import Home
from flows.run.protocols import IterationSummary, SilentObserver
from ops.integrations.apprise_notifier import AppriseNotifier
from ops.integrations.trackers import trackers_of
from yatt_core.errors import ExitCode, YattError
from yatt_core.experience.sampled import SAMPLED
from yatt_core.keys import iteration_folder
from yatt_core.manifests import MANIFEST

KILL_SECONDS = 120.0


def wait_for_the_kill(*_: object) -> None:
    """Stands in for the record of a phase's end."""
    time.sleep(KILL_SECONDS)
    raise AssertionError("nobody has killed this process")


class KillingObserver(SilentObserver):
    """Kills this process, as `kill -9` would, once a phase of an iteration is in progress.

    In `collect`, it first waits until a shard of the wave is recorded, or a sampler has sealed one. Two words may replace the
    phase: `settled` kills in `collect` once the wave is settled, `committed` after the iteration's commit.
    """

    def __init__(self, home: Home, run: str, phase: str, iteration: int, wave: int) -> None:
        self._settled = phase == "settled"
        self._wave = wave
        self._home = home
        self._run = run
        self._moment = (iteration, "collect" if self._settled else phase)

    def phase_started(self, iteration: int, phase: str) -> None:
        if (iteration, phase) == self._moment:
            # Opened before the phase begins, because a short phase may end before the ledger is open. Its end is never
            # recorded: on a busy machine it could be over before this process is killed.
            ledger = Ledger.open(self._home.ledger)
            Phases.finish = wait_for_the_kill  # type: ignore[method-assign]
            threading.Thread(target=self._kill_in_the_middle, args=(ledger,), daemon=True).start()

    def committed(self, summary: IterationSummary) -> None:
        if (summary.iteration, "committed") == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def _kill_in_the_middle(self, ledger: Ledger) -> None:
        iteration, phase = self._moment
        while True:
            attempts = [a for a in ledger.phases.attempts(self._run, 0, iteration) if a.phase == phase]
            under_way = any(attempt.state == "DISPATCHED" for attempt in attempts)
            if under_way and (phase != "collect" or self._has_come(ledger, iteration)):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.001)

    def _has_come(self, ledger: Ledger, iteration: int) -> bool:
        if self._settled:
            waves = ledger.records.waves(self._run, 0, iteration)
            return any(row.wave == self._wave and row.outcome is not None for row in waves)
        sampled = self._home.run_folder(self._run).glob(f"{iteration_folder(0, iteration)}/{SAMPLED}-*/{MANIFEST}")
        return bool(ledger.records.shards(self._run, 0, iteration, self._wave)) or any(sampled)


def drive_flow_run(key: UUID) -> int:
    from prefect.client.orchestration import get_client
    from prefect.flow_engine import run_flow

    from ops.scheduled import window

    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(key)
    state = run_flow(window, flow_run=flow_run, parameters=flow_run.parameters, return_type="state")
    sys.stdout.write(f"{state.name}: {state.message}\n")
    return ExitCode.OK if state.is_completed() else ExitCode.FAILURE


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("run")
    parser.add_argument("--kill", metavar="PHASE:ITERATION[:WAVE]")
    parser.add_argument("--accept-drift", action="store_true")
    parser.add_argument("--until", type=int, metavar="ITERATION")
    parser.add_argument("--flow-run", type=UUID, metavar="ID")
    arguments = parser.parse_args()
    if arguments.flow_run:
        return drive_flow_run(arguments.flow_run)
    home = Home(arguments.home)
    observer = SilentObserver()
    if arguments.kill:
        phase, iteration, *wave = arguments.kill.split(":")
        observer = KillingObserver(home, arguments.run, phase, int(iteration), int(wave[0]) if wave else 0)
    try:
        spec = load_run(home, arguments.run)[1]
        notifier = AppriseNotifier.from_environment(spec.guards.notify)
        outcome = run_session(
            home=home,
            name=arguments.run,
            observer=observer,
            trackers=trackers_of(home, spec),
            accept_drift=arguments.accept_drift,
            notifier=notifier,
            until=arguments.until,
        )
    except LeaseHeld as error:
        sys.stdout.write(f"{error}\n")
        return ExitCode.LEASE_HELD
    except YattError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{outcome}\n")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
