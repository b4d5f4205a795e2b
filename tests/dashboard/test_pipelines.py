"""The pages about pipelines: the list, and the graph of one."""

from __future__ import annotations

from pathlib import Path

from markupsafe import escape

from db.core.holder import this_process
from db.core.subjects import of_pipeline
from db.ledger import Ledger
from flows.pipelines.record import start_pipeline
from flows.pipelines.spec import parse_pipeline
from flows.run.home import Home
from ops.pipelines.drawing import graph_picture
from ops.pipelines.view import pipeline_list, pipeline_view

RUN = {"kind": "train", "spec": "run.yaml"}


def test_the_graph_has_a_box_for_each_job_and_a_line_for_each_need(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    jobs = {"last": RUN | {"needs": ["a", "b"]}, "a": RUN, "b": RUN | {"needs": ["a"]}}
    row = start_pipeline(home, parse_pipeline({"name": "line", "jobs": jobs}, "line"), tmp_path, "ann")
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.take(of_pipeline(row.id), this_process(), 60)
        attempt = ledger.pipelines.begin(fence, "a", "key", {}, {})
        ledger.pipelines.end(fence, attempt, "failed", {}, "no <space> left")
        view = pipeline_view(ledger, row.id)
        assert pipeline_list(ledger) == (view,) and not view.interrupted
    assert [(job.name, job.level, job.state) for job in view.jobs] == [
        ("a", 0, "failed"),
        ("b", 1, "planned"),
        ("last", 2, "planned"),
    ]
    picture = str(graph_picture(view))
    assert picture.count("<g ") == 3 and picture.count("<path ") == 3
    assert str(escape("no <space> left")) in picture and "<space>" not in picture
