"""Alert rules and Grafana dashboards use exported metrics; by Prometheus's own checker, rules fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.reports.accounting import BUCKETS
from ops.metrics import grafana
from ops.metrics.collector import LEARNING
from tests.metrics.exported import METRICS
from tests.metrics.promtool import NoPromtool, find_promtool

RULES = Path(grafana.__file__).with_name("alerts.yaml")
TESTS = Path(__file__).with_name("alerts_test.yaml")
EXPORTED = {metric.exported: metric for metric in METRICS}


def alerts() -> list[dict[str, object]]:
    document = YAML(typ="safe").load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def asked(expression: str) -> set[str]:
    return set(re.findall(r"\byatt_\w+", expression))


def queries_of(dashboard: dict[str, Any]) -> list[str]:
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return asked + [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]


def test_rules_and_dashboards_use_exported_metrics() -> None:
    expressions = [str(rule["expr"]) for rule in alerts()]
    for dashboard in grafana.dashboards().values():
        found = queries_of(dashboard)
        assert len(found) > 10
        expressions += found
    names_asked = set().union(*(asked(expression) for expression in expressions))
    assert names_asked <= EXPORTED.keys()
    assert EXPORTED.keys() == names_asked, "exported but not used"
    for expression in expressions:
        for name, labels in re.findall(r"\b(yatt_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)=", labels)) <= set(EXPORTED[name].labels), expression
        for metric in re.findall(r'metric="([^"]+)"', expression):
            assert metric in LEARNING


def test_the_dashboard_files_are_up_to_date() -> None:
    made = grafana.dashboards()
    assert {path.name for path in grafana.FOLDER.glob("*.json")} == made.keys()
    for name, dashboard in made.items():
        assert (grafana.FOLDER / name).read_text() == grafana.text_of(dashboard), (
            f"python -m ops.metrics.grafana: {name}"
        )
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for one in panels:
            place = one["gridPos"]
            assert place["x"] + place["w"] <= grafana.WIDTH
            for other in panels:
                beside = other["gridPos"]
                overlap = (
                    place["y"] == beside["y"]
                    and place["x"] < beside["x"] + beside["w"]
                    and beside["x"] < place["x"] + place["w"]
                )
                assert one is other or not overlap
        json.dumps(dashboard, allow_nan=False)
    assert len({dashboard["uid"] for dashboard in made.values()}) == len(made)


def test_every_alert_has_a_unit_test_where_it_fires_and_one_where_it_is_silent() -> None:
    tested = YAML(typ="safe").load(TESTS.read_text())["tests"]
    cases = [case for test in tested for case in test["alert_rule_test"]]
    names_of = {str(rule["alert"]) for rule in alerts()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names_of
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names_of
    assert all(rule["annotations"] and rule["labels"] for rule in alerts())


def test_names_follow_the_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"yatt_[a-z_]+", metric.name)
        assert not metric.name.endswith(("_total", "_info"))
        assert set(metric.labels) <= {
            "run",
            "dependency",
            "state",
            "metric",
            "phase",
            "failure_class",
            "bucket",
            "rule",
            "action",
            "project",
            "owner",
            "currency",
            "pool",
            "kind",
        }
        assert not re.search(r"_(ms|milliseconds|minutes|percent|mb)(_|$)", metric.name)
    assert len(EXPORTED) == len(METRICS)
    assert set(BUCKETS) == {"productive", "redone", "checkpoint", "start", "restart", "waiting", "idle"}


def test_the_docs_name_every_metric_with_its_labels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels or ("version", "ledger") * (metric.kind == "info"))
        assert f"| `{metric.exported}` | {labels} | {metric.help} |" in page


@pytest.mark.verify
def test_the_rules_pass_prometheus_own_checker(tmp_path: Path) -> None:
    try:
        promtool = find_promtool(tmp_path)
    except NoPromtool as error:
        pytest.skip(str(error))
    for path in (RULES, TESTS):
        shutil.copy(path, tmp_path)
    for command in (["check", "rules", RULES.name], ["test", "rules", TESTS.name]):
        answer = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    # The checker notices errors: a rule that fires too early fails its test.
    broken = RULES.read_text().replace("for: 2m", "for: 0m")
    assert broken != RULES.read_text()
    (tmp_path / RULES.name).write_text(broken)
    assert subprocess.run([promtool, "test", "rules", TESTS.name], cwd=tmp_path, capture_output=True).returncode != 0
