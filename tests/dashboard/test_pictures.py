"""The figures on pages: pure functions of read models."""

from __future__ import annotations

from dataclasses import asdict, replace

from db.write.phases import AttemptRow
from flows.reports.accounting import BUCKETS
from flows.reports.lineage import BranchNode
from ops.dashboard.pages.charts import LEARNING, THROUGHPUT, charts_of, compared_charts
from ops.dashboard.pages.pictures import phase_bars, time_parts
from ops.dashboard.pages.run import tree_of
from ops.queries.run_list import DRIVEN, LOST, ListedRun
from ops.web.frame import possible

ATTEMPT = AttemptRow("r", 0, 1, "collect", 1, "DONE", 1, 1000, 1100, 3000, None, None, None, 2.0, 0)
RUN = ListedRun(
    id="r-1",
    spec_name="r",
    state="running",
    state_reason="",
    desired_state="run",
    iteration=3,
    target_iterations=8,
    progress=0.4,
    branch=0,
    created_at=0,
    committed_at=0,
    last_commit_age=1.0,
    driver=DRIVEN,
    holder="somebody",
    term=1,
    lease_expires_in=9.0,
    reward=0.5,
    accuracy=0.25,
    iteration_seconds=1.0,
    eta_seconds=5.0,
    event_seq=7,
)


def test_the_time_bar_has_every_bucket_and_no_gap() -> None:
    parts = time_parts(dict(zip(BUCKETS, (5.0, 1.0, 0.0, 2.0, 1.0, 0.5, 0.5), strict=True)), 10.0)
    assert [part.name for part in parts] == list(BUCKETS)
    assert [round(part.start) for part in parts] == [0, 500, 600, 600, 800, 900, 950]
    assert round(parts[-1].start + parts[-1].width) == 1000 and sum(part.share for part in parts) == 1.0
    assert len({part.colour for part in parts}) == len(parts)
    assert time_parts(dict.fromkeys(BUCKETS, 0.0), 0.0) == ()


def test_phases_are_drawn_from_the_first_to_now() -> None:
    failed = replace(ATTEMPT, phase="learn", state="FAILED", planned_at=3000, ended_at=4000)
    under_way = replace(ATTEMPT, phase="learn", number=2, state="DISPATCHED", planned_at=4000, ended_at=None)
    bars = phase_bars([ATTEMPT, failed, under_way], now=5000)
    assert [(bar.kind, bar.start_s, bar.seconds) for bar in bars] == [
        ("first", 0.0, 2.0),
        ("failed", 2.0, 1.0),
        ("third", 3.0, 1.0),
    ]
    assert [(bar.start, bar.width) for bar in bars] == [(0.0, 500.0), (500.0, 250.0), (750.0, 250.0)]
    assert phase_bars([], now=5000) == ()


def test_the_possible_actions_follow_from_the_runs_state() -> None:
    assert allowed(RUN) == {"stop", "checkpoint", "fork"}
    assert allowed(replace(RUN, state="waiting")) == {"stop", "checkpoint", "try_now", "fork"}
    assert allowed(replace(RUN, desired_state="stop")) == {"checkpoint", "fork"}
    idle = {"fork", "rollback", "settings", "archive", "delete"}
    assert allowed(replace(RUN, driver=LOST)) == {*idle, "resume"}
    assert allowed(replace(RUN, driver=LOST, state="failed")) == {*idle, "resume", "retry"}
    assert allowed(replace(RUN, driver="nobody", iteration=8)) == idle
    assert allowed(replace(RUN, driver="nobody", iteration=-1)) == {"resume", "settings", "delete"}
    assert allowed(replace(RUN, iteration=-1)) == {"stop", "checkpoint"}


def allowed(run: ListedRun) -> set[str]:
    """Returns the names of the possible actions."""
    return {name for name, is_possible in asdict(possible(run)).items() if is_possible}


def test_a_run_has_all_pictures_and_a_comparison_those_of_known_metrics() -> None:
    (reward,) = charts_of("a b/c", LEARNING[:1])
    assert reward.sources[0].names == {"reward/mean": "mean", "reward/std": "deviation"}
    assert reward.sources[0].url == "/api/v1/runs/a%20b%2Fc/series?key=reward%2Fmean&key=reward%2Fstd&buckets=300"
    assert charts_of("r", THROUGHPUT)[1].title == "Seconds by phase"
    (entropy,) = compared_charts(["a", "b"], {"entropy"})
    assert [source.names for source in entropy.sources] == [{"entropy": "a"}, {"entropy": "b"}]


def test_branches_are_drawn_below_their_parents() -> None:
    def node(number: int, run: str | None, parent: int | None) -> BranchNode:
        return BranchNode(number, run, parent, None if parent is None else 3, 5, False, "", ())

    (root,) = tree_of("r", [node(0, None, None), node(1, "r", 0), node(2, "r", 1), node(3, "r", 0)])
    assert [below.branch.number for below in root.below] == [1, 3]
    assert [below.branch.number for below in root.below[0].below] == [2]
    (fork,) = tree_of("f", [node(0, "r", 2)])
    assert fork.branch.number == 0
