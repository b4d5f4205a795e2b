"""The flow that workers start for a deployment made by `yatt deploy`, with progress lines and tracking.

Its module path is the entrypoint of every deployment, so its name and parameters must not change.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from flows.run.creation import load_run
from flows.run.home import Home
from flows.schedule.scheduled import Ending, drive_window, window_flow
from ops.group.pages import live_pages
from ops.integrations.apprise_notifier import AppriseNotifier
from ops.integrations.trackers import trackers_of
from ops.presentation.progress import watching
from ops.process import keep_caches_inside, outlive_readers

WINDOW_LOG = "window.log"


@window_flow
def window(run: str, home: str, owner: str | None = None, for_seconds: float | None = None) -> Ending:
    """Drives a run from its last commit until this window ends.

    run: its id.
    home: the folder of runs.
    owner: a digest, written by `yatt deploy`, that distinguishes the run from one of the same name in another ledger.
    for_seconds: maximum duration of a window; it never extends into the next one.
    """
    place = Home(Path(home))
    keep_caches_inside(place)
    outlive_readers(place.run_folder(run) / WINDOW_LOG)
    longest = None if for_seconds is None else timedelta(seconds=for_seconds)
    with watching(run, lambda: load_run(place, run)[1].sft is not None) as observer:
        trackers = trackers_of(place, load_run(place, run)[1])
        return drive_window(
            place, run, owner, longest, observer, trackers, lambda: _notifier(place, run), pages=live_pages(place)
        )


def _notifier(home: Home, run: str) -> AppriseNotifier | None:
    return AppriseNotifier.from_environment(load_run(home, run)[1].guards.notify)
