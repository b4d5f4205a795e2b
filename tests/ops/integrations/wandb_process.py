"""A process that delivers to Weights & Biases, as a session does: `HOME MODE LAST [hang|cut]`.

It delivers spec and iterations 0 to 2, then those up to LAST. With `hang` and `cut`, wandb keeps the latter in memory. With
`hang`, the process waits until it is killed; with `cut`, it cuts the tracker off and ends.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from flows.run.home import Home
from flows.run.protocols import OutboxItem
from ops.integrations import wandb_tracker
from yatt_core.errors import InfrastructureError

CREATION = OutboxItem(
    "toy-1/run@wandb", "toy-1", "run", {"owner": "o", "name": "toy-1", "experiment": "e"}, 5_000, None
)


def points(name: str, first: int, last: int) -> list[OutboxItem]:
    return [
        OutboxItem(f"m{k}", "toy-1", "metrics", {"iteration": k, "metrics": {"reward/mean": k / 10}}, 5_000 + k, name)
        for k in range(first, last + 1)
    ]


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def never(run: wandb_tracker.OpenRun) -> bool:
    say("logged")
    time.sleep(600)
    return False


def deliver_until_cut(tracker: wandb_tracker.WandbTracker, items: list[OutboxItem]) -> None:
    """Delivers points, and cuts the tracker off while it waits for their confirmation."""
    confirmed = tracker._confirmed

    def cut_meanwhile(run: wandb_tracker.OpenRun) -> bool:
        run.confirm()  # wandb's process serves queries before it dies
        cutting = threading.Thread(target=tracker.cut)
        cutting.start()
        cutting.join()
        return confirmed(run)

    wandb_tracker.CONFIRM_SECONDS = 1.0
    tracker._confirmed = cut_meanwhile  # type: ignore[method-assign]
    for _ in range(2):
        try:
            tracker.deliver(items)
        except InfrastructureError:
            say("refused")
    tracker.close()


def main(home: str, mode: str, last: int, ends: str) -> None:
    hangs = ends in ("hang", "cut")
    wandb_tracker.SETTINGS["x_file_stream_transmit_interval"] = 1000.0 if hangs else 0.2
    wandb_tracker.FLUSH_SECONDS = 1000.0 if hangs else 0.2
    wandb_tracker.POLL_SECONDS["online"] = 0.1
    tracker = wandb_tracker.WandbTracker(Home(Path(home)), mode)
    name = tracker.deliver([CREATION])[CREATION.key]
    described = [
        OutboxItem("p", "toy-1", "params", {"seed": "7"}, 5_000, name),
        OutboxItem("n", "toy-1", "note", {"text": "a note"}, 5_000, name),
        OutboxItem("s", "toy-1", "status", {"status": "RUNNING"}, 5_000, name),
    ]
    tracker.deliver([*described, *points(name, 0, 2)])
    if ends == "hang":
        tracker._confirmed = never  # type: ignore[method-assign]
    if ends == "cut":
        deliver_until_cut(tracker, points(name, 3, last))
        return
    tracker.deliver(points(name, 3, last))
    say("delivered")
    tracker.deliver([OutboxItem("e", "toy-1", "status", {"status": "FINISHED"}, 6_000, name)])
    tracker.close()


if __name__ == "__main__":
    # As in a session, wandb is used in another thread than the main one.
    thread = threading.Thread(target=main, args=(sys.argv[1], sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])))
    thread.start()
    thread.join()
