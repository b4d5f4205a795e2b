"""The flow that workers start for a deployment made by `yatt deploy`, with progress lines and tracking.

Its module path is the entrypoint of every deployment, so its name must not change. Its parameters are the fields of the
form in Prefect's UI, which takes their descriptions from the docstring, in the only format that Prefect reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from flows.run.creation import load_run
from flows.run.home import Home
from flows.schedule.parameters import CONTINUE, NO_OVERRIDES, DurationText, RunChoice, WindowParameters
from flows.schedule.scheduled import drive_window, stopped_in_order, window_flow
from flows.schedule.window_start import BegunWindow, Ending, begin_window
from ops.evaluators import start_evaluators
from ops.group.pages import live_pages
from ops.integrations.apprise_notifier import AppriseNotifier
from ops.integrations.trackers import trackers_of
from ops.presentation.progress import watching
from ops.process import keep_caches_inside, outlive_readers
from yatt_core.spec import RunSpec

WINDOW_LOG = "window.log"


@window_flow
def window(
    run: RunChoice = CONTINUE,
    overrides: dict[str, Any] = NO_OVERRIDES,
    iterations: PositiveInt | None = None,
    window: DurationText | None = None,
    *,
    deployed_run: str,
    home: str,
    owner: str | None = None,
) -> Ending:
    """Drives a run from its last commit until this window ends.

    Args:
        run: `continue` drives the deployment's run; overrides then become a new revision of its spec, which stays in
            effect, as after `yatt resume --set`. `new` starts a new run from that run's present spec.
        overrides: Values of the spec to change, by dotted key, such as {"trainer.optimizer.learning_rate": 3e-4}.
        iterations: The iteration at which the run is complete. Empty keeps the target in the spec.
        window: Maximum length of this window, such as 8h, 90m or 1h30m. Empty for no limit. A window of a schedule also
            ends when the next one begins.
        deployed_run: The deployment's run. Set by `yatt deploy`; leave it unchanged.
        home: The folder of runs. Set by `yatt deploy`; leave it unchanged.
        owner: A digest that distinguishes the run from one of the same name in another ledger. Set by `yatt deploy`;
            leave it unchanged.

    """
    place = Home(Path(home))
    keep_caches_inside(place)
    outlive_readers(place.run_folder(deployed_run) / WINDOW_LOG)
    parameters = WindowParameters(run, overrides, iterations, window)

    def check(spec: RunSpec, copies: Path, accepted: bool) -> list[str]:
        from ops.preflight.run import check_before_start

        return check_before_start(place.folder, spec, copies=copies, accepted=accepted).warnings

    def body() -> Ending:
        begun = begin_window(home=place, run=deployed_run, owner=owner, parameters=parameters, check=check)
        return _driven(place, begun) if isinstance(begun, BegunWindow) else begun

    return stopped_in_order(place, deployed_run, body)


def _driven(home: Home, begun: BegunWindow) -> Ending:
    run = begun.run
    spec = load_run(home, run)[1]
    start_evaluators(home, run, spec)
    with watching(run, lambda: spec.sft is not None) as observer:
        return drive_window(
            home=home,
            begun=begun,
            observer=observer,
            trackers=trackers_of(home, spec),
            notifier=lambda: AppriseNotifier.from_environment(spec.guards.notify),
            pages=live_pages(home),
        )
