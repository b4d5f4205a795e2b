"""The stacks of a trainer's rank that hangs are in the run's folder before the rank is ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.test_fault_stacks import process_that_hangs
from yatt_core.actors.presence import StackReport
from yatt_core.cluster.metering import UNINTERRUPTED, BytesMeter
from yatt_core.fault_stacks import dump_stacks, kept_stacks
from yatt_core.logs import log_context
from yatt_core.run_actors import calls as calls_module
from yatt_core.run_actors import hung_stacks
from yatt_core.run_actors.calls import ActorCalls

RANKS = ("trainer-0", "trainer-1")
WAITING = StackReport("trainer-1", "learn", 60.0, "group.py:1 wait", True, (), None, "all_reduce", RANKS)


def test_a_rank_that_hangs_leaves_its_stacks_before_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank is a real process; its node, which would take the stacks, is this one."""
    ended = list[tuple[str, list[str]]]()

    def end_stuck(name: str, reason: str) -> None:
        ended.append((name, list(kept_stacks(tmp_path))))

    with process_that_hangs(tmp_path) as pid:
        registry: Any = SimpleNamespace(
            names=[*RANKS, "rollout-0"],
            names_of=lambda role: list(RANKS),
            store=None,
            require_current=lambda: None,
            actor_ids=lambda names: dict.fromkeys(names, "an id of Ray's"),
            end_stuck=end_stuck,
        )

        def dumped(run_folder: Path, actors: Mapping[str, str], _: object) -> dict[str, str]:
            return {name: dump_stacks(str(run_folder), name, pid) for name in actors}

        reports = {"trainer-1": WAITING, "rollout-0": StackReport("rollout-0", "generate", 9.0, "decode", False, ())}
        monkeypatch.setattr(calls_module, "gather_stacks", lambda *_: reports)
        monkeypatch.setattr(hung_stacks, "_dumped", dumped)
        calls = ActorCalls(registry, tmp_path, BytesMeter(), UNINTERRUPTED, 5.0)
        with log_context(iteration=7, phase="learn"):
            error = calls.stuck("learn took more than 5 s", list(RANKS))
    ((name, kept),) = ended
    assert name == "trainer-0", "the other rank waits for it, and the rollout works ahead"
    (file,) = kept
    assert file.rpartition("/")[2].startswith("i7.learn.trainer-0.") and file in str(error)
    assert "hangs_in_native_code" in (tmp_path / file).read_text()
