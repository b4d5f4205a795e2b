"""A run with a judge whose iteration has samples with a score, and samples that got none for different reasons."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.records import WaveRow
from flows.run.control_state import ControlState
from flows.run.home import Home
from tests.ops.seeding import PROMPTS, SAMPLES, SHARDS, commit_of, seal_iteration, seed_run, toy_spec
from yatt_core.experience.dynamic_sampling import Sampling, SamplingRule, WaveGroups
from yatt_core.experience.judge_log import JUDGEMENTS_SCHEMA
from yatt_core.experience.table import UNREAD, UNSCORED, experience_schema
from yatt_core.prompts.stream import Cursor

GROUPS = SHARDS * PROMPTS
SAID = "I would say <b>8</b>"
"""What the judge says about samples with a score."""
CUT = (0, 1)
FAILED = (1, 0)
UNREADABLE = (3, 1)
"""Prompt and number of the samples without a score: the judge was cut, it failed, and it said nothing usable."""
ANSWERS = {CUT: ("on the one hand", "judge/cut"), UNREADABLE: ("who knows", "judge/unparsed")}
DOWN = "infrastructure: status 503, 4 times"


def seed_judged_run(home: Home) -> str:
    """Creates the run, with one iteration of which all groups were admitted."""
    run = seed_run(home, committed=0, ends=False)
    spec = toy_spec()
    with Ledger.open(home.ledger) as ledger:
        fence = Fence.of_run(run, 1)
        sampling = Sampling(SamplingRule(target=GROUPS, shards=SHARDS, samples=SAMPLES))
        plan = sampling.plan()
        ledger.records.wave(fence, WaveRow(0, 1, 0, asdict(plan) | {"cursor": Cursor.start(spec.data).to_json()}))
        seal_iteration(home, ledger, fence, 1, without_scores, judgements_about)
        everything = np.ones(GROUPS, dtype=np.bool_)
        scored = np.array([1, 1, 2, 1])
        groups = WaveGroups(np.arange(GROUPS), everything, np.full(GROUPS, 10), scored)
        ledger.records.settle_wave(fence, 0, 1, 0, sampling.settle(plan, groups, SHARDS).to_json())
        state = replace(ControlState.initial(spec.data), iteration=1)
        ledger.commits.commit(fence, commit_of(1, state.to_json()))
    return run


def without_scores(table: pa.Table) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for row in table.to_pylist():
        place = (row["prompt_ordinal"], row["sample"])
        _, unread = ANSWERS.get(place, ("", None))
        missing = "judge/infrastructure" if place == FAILED else unread
        rewards = {"reward": 0.0, "correct": False} if missing else {}
        rows.append(row | rewards | {UNSCORED: missing, UNREAD: unread})
    return pa.Table.from_pylist(rows, schema=experience_schema(["virtual"], [UNSCORED, UNREAD]))


def judgements_about(table: pa.Table) -> pa.Table:
    rows = []
    for row in table.to_pylist():
        place = (row["prompt_ordinal"], row["sample"])
        answer, unread = ANSWERS.get(place, (SAID, None))
        score = None if unread else 8.0
        said = {"answer": answer, "score": score, "tokens": 3, "prompt_tokens": 5, "cut": place == CUT}
        told = {"judgements": [], "error": DOWN} if place == FAILED else {"judgements": [said], "error": ""}
        rows.append({"prompt_ordinal": place[0], "sample": place[1], "part": "judge", **told})
    return pa.Table.from_pylist(rows, schema=JUDGEMENTS_SCHEMA)
