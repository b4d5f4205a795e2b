"""A judge's endpoint that is away, as the driver sees it: what it raises, whether it is back, and the devices meanwhile."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.run_actors import actors_of, pids, shard_tasks
from tests.judges.server import Reply, completion, serving
from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core.errors import AwayError
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.spec import RunSpec, load_spec

NAMESPACE = "away"
OFF_DEVICES = {"controller-0", "dispatcher-0", "endpoint-0"}
ON_DEVICES = {"rollout-0", "trainer-0"}


def judged_spec(url: str) -> RunSpec:
    judge = {
        "name": "others", "kind": "endpoint", "url": url, "model": "m", "template": "{prompt} {response}", "seeded": True,
        "retries": 1, "backoff_seconds": 0.05,
    }  # fmt: skip
    rule = {"name": "rule", "function": "virtual_score"}
    return load_spec(ROOT / "tests" / "specs" / "virtual.yaml", [f"rewards.parts={json.dumps([rule, judge])}"])


def processes() -> dict[str, int]:
    """Returns the process id of each living actor by its name in messages."""
    return {registered.partition(".")[0]: pid for registered, pid in pids().items()}


def make_ready(actors: RunActors) -> tuple[str, ...]:
    """Starts and loads the actors, trains the initial policy and syncs it; returns the names of the new ones."""
    created = actors.start()
    actors.load(actors.materialise())
    actors.sft()
    actors.sync(0)
    return created


def test_devices_are_left_while_a_judge_is_away_and_taken_again_once_it_answers(
    actor_sets: list[RunActors], tmp_path: Path
) -> None:
    back = threading.Event()

    def answer(body: dict[str, Any], number: int) -> Reply:
        return Reply(body=completion("yes")) if back.is_set() else Reply(503)

    folder = tmp_path / "run"  # beside it is what runs share about endpoints
    folder.mkdir()
    with serving(answer) as server:
        spec = judged_spec(server.url)
        actors = actors_of(spec, folder, 1)
        actor_sets.append(actors)
        assert set(make_ready(actors)) == OFF_DEVICES | ON_DEVICES
        before = processes()
        tasks = shard_tasks(spec, 1)
        with pytest.raises(AwayError, match=rf"^judge 'others' at {server.url} is away: .*503") as caught:
            list(actors.begin_collecting(tasks).receipts())
        judge = caught.value.dependency
        assert actors.answers(judge) is False
        assert actors.answers("judge 'unheard of'") is None, "no actor knows it"

        actors.leave_devices()
        wait_until(lambda: processes().keys() == OFF_DEVICES, seconds=60.0)
        assert actors.answers(judge) is False, "those that stay look whether it is back"
        back.set()
        wait_until(lambda: actors.answers(judge), seconds=60.0)

        assert set(make_ready(actors)) == ON_DEVICES
        after = processes()
        assert {name for name in before if before[name] == after[name]} == OFF_DEVICES, (
            "and those are the ones of before"
        )
        assert len(list(actors.begin_collecting(tasks).receipts())) == len(tasks)
