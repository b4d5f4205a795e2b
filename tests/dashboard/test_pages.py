"""The pages without a browser: each answers, is valid HTML, complies with its content policy, and escapes texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from fastapi.testclient import TestClient

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.waits import WaitRow
from flows.reports import measures
from flows.run.home import Home
from flows.run.pages import Pages
from ops.dashboard.app import create_app
from ops.dashboard.pages.charts import THROUGHPUT, learning_charts
from ops.web.frame import TABS
from ops.web.security import POLICY
from ops.web.templating import OPS, STATIC
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER, HTML, check_page, links, parsed, parsed_part, words
from tests.dashboard.seeding import HOSTILE, NAME, RESPONSE, seed_hostile, shake
from tests.ops.judged_run import CUT, DOWN, FAILED, SAID, UNREADABLE, seed_judged_run
from tests.ops.seeding import seed_run, toy_spec, write_copied_logs
from tests.placement.recorded_run import judged_spec, record_run
from yatt_core.experience.telemetry import write_telemetry
from yatt_core.protocols.judges import ScoreEffort
from yatt_core.spec import parse_spec
from yatt_core.spec.reading.documents import parse_yaml

FROM_VENDORED = {"uplot", "u-select", "u-cursor-x", "u-cursor-y", "htmx-request"}
"""Classes that are set by third-party scripts."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Seeds one run of every kind that pages distinguish: failed, rolled back, driven, with judges on its devices."""
    home = Home(tmp_path_factory.mktemp("pages") / "runs")
    seed_run(home, committed=3)
    shake(home, "toy-1")
    judged = seed_run(home, ends=False)
    score = ScoreEffort("<b>part</b>", 3, "p3", 1, 4.5, 0.5, 2, 3, 11, 0.25)
    write_telemetry(home.run_folder(judged), 0, 2, "collect.w00.t0001", {"shard-0000": {"scores": [asdict(score)]}})
    record_run(home, judged_spec(), 3)
    return home


@pytest.fixture(scope="module")
def browser(full: Home) -> Iterator[TestClient]:
    with TestClient(create_app(full), base_url=ORIGIN, headers=BROWSER) as client:
        yield client


def test_every_linked_page_is_complete(browser: TestClient) -> None:
    queue = ["/"]
    seen = set[str]()
    found = set[str]()
    while queue:
        path = queue.pop()
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"] == POLICY
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        found.add(re.sub(r"^/runs/[^/]+", "/runs/RUN", urlsplit(path).path))
        for link in links(check_page(answer.text)):
            if link.startswith("/") and link not in seen:
                seen.add(link)
                queue.append(link)
    pages = {"/runs/RUN" + (f"/{path}" if path else "") for path, _ in TABS}
    others = {
        *("/", "/approvals", "/compare", "/soups", "/sweeps", "/pipelines", "/queue", "/deployments", "/costs"),
        *("/new", "/sign-in"),
    }
    assert found == pages | others


def test_the_content_policy_has_no_exception_and_htmx_needs_none(browser: TestClient) -> None:
    assert "script-src 'self'" in POLICY and "style-src 'self'" in POLICY and "unsafe" not in POLICY
    config = parsed(browser.get("/").text).find(f".//{HTML}meta[@name='htmx-config']")
    assert config is not None
    settings = json.loads(config.attrib["content"])
    assert settings["allowEval"] is False and settings["includeIndicatorStyles"] is False


def test_pages_show_their_content(browser: TestClient) -> None:
    def text_of(path: str) -> str:
        return words(check_page(browser.get(path).text))

    assert "toy-2 ● running" in text_of("/")
    assert "toy-2" not in text_of("/?text=judged") and "toy-1" in text_of("/?state=failed")
    run = text_of("/runs/toy-2")
    assert "Learning health" in run and "ETTR" in run and "driver of toy-2" in run
    assert "rollbackentropy is 0.01 nats, less than 0.05" in text_of("/runs/toy-1")
    assert "rollbackentropy is 0.01 nats" in words(parsed_part(browser.get("/runs/toy-1/now").text))
    (alarm,) = browser.get("/api/v1/runs/toy-1").json()["alarms"]
    assert (alarm["rule"], alarm["evidence"]) == ("entropy", {"entropy": [0.5, 0.01]})
    devices = text_of("/runs/judged-1/devices?iteration=2")
    assert "Reason:" in devices and "instances judge" in devices and "Roles during collect" in devices
    rollouts = text_of("/runs/toy-2/rollouts?iteration=2&order=reward")
    assert rollouts.index("answer 3.0") < rollouts.index("answer 3.1") < rollouts.index("answer 0.0")
    samples = text_of("/runs/toy-2/rollouts?iteration=2&view=samples&order=reward&where=sample+=+1,tokens+>+1")
    assert samples.index("answer 3.1") < samples.index("answer 0.1") and "answer 3.0" not in samples
    assert "answer 1.1" not in text_of("/runs/toy-2/rollouts?iteration=2&text=answer+3.1")
    assert "rewrad" in text_of("/runs/toy-2/rollouts?iteration=2&where=rewrad>1")
    assert "same prompt" in text_of("/runs/toy-2/rollouts?iteration=2&against=1")
    assert "Iteration 1 compared with 2" in text_of("/runs/toy-2/rollouts?iteration=2&against=1")
    first = "/runs/toy-2/rollouts?iteration=1&view=prompts&prompt=0&order=prompt"
    assert first in set(links(parsed(browser.get("/runs/toy-2/rollouts?iteration=1").text)))
    assert "no experience of iteration 9" in text_of("/runs/toy-2/rollouts?iteration=9")
    assert "Slowest scores" not in text_of("/runs/toy-2/rollouts?iteration=1"), "no endpoint was asked"
    slow = text_of("/runs/toy-2/rollouts?iteration=2")
    assert "Slowest scores" in slow and "Dearest scores" in slow and "<b>part</b>" in slow
    assert "an actor was lost" in text_of("/runs/toy-1/faults")
    logs = text_of("/runs/toy-1/logs?actor=controller-0&level=error")
    assert "shard 1" in logs and "driver started" not in logs and "shard 0" not in logs
    assert "branch 1 after iteration 1, no commit yet current reward fell" in text_of("/runs/toy-1/lineage")
    compared = text_of("/compare?run=toy-1&run=judged-1")
    assert "Differences between the specs" in compared and "weights_digest" in compared and "different" in compared
    assert "there is no run 'none'" in words(check_page(browser.get("/compare?run=none").text))


def test_rollouts_without_a_score_are_marked_and_judges_are_quoted(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    run = seed_judged_run(home)
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as browser:
        page = check_page(browser.get(f"/runs/{run}/rollouts?iteration=1&view=prompts&order=prompt").text)
        one_by_one = words(check_page(browser.get(f"/runs/{run}/rollouts?iteration=1&view=samples&order=reward").text))
        listed = browser.get(f"/api/v1/runs/{run}/rollouts/1?order=reward&ascending=true").json()["samples"]
    assert [row["reward"] is None for row in listed] == [False] * 5 + [True] * 3
    assert one_by_one.count("no score") >= 3 and "reward None" not in one_by_one
    rows = {}
    for row in page.iter(f"{HTML}tr"):
        for link in row.iter(f"{HTML}a"):
            if (address := link.attrib["href"]).startswith("#response-"):
                _, _, ordinal, sample = address.split("-")
                rows[int(ordinal), int(sample)] = words(row)
    lacking = {CUT, FAILED, UNREADABLE}
    assert {place for place, shown in rows.items() if "no score" in shown} == lacking and len(rows) == 8
    assert all(("wrong" in shown or "correct" in shown) == (place not in lacking) for place, shown in rows.items())
    responses = {each.attrib["id"]: words(each) for each in page.iter(f"{HTML}details") if "id" in each.attrib}
    quoted = {place: responses[f"response-1-{place[0]}-{place[1]}"].partition("What judges said ")[2] for place in rows}
    assert quoted[0, 0] == f"judge: 8{SAID}", "as text, not as markup"
    assert quoted[CUT] == "judge: no score (cut)on the one hand"
    assert quoted[FAILED] == f"judge: no score ({DOWN})"
    assert quoted[UNREADABLE] == "judge: no score (unparsed)who knows"


def test_log_records_of_other_disks_name_their_node(home: Home) -> None:
    write_copied_logs(home.run_folder("toy-1"), "worker-7")
    write_copied_logs(home.run_folder("toy-1"), "worker-8", lost_since=60.0)
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as browser:
        page = words(check_page(browser.get("/runs/toy-1/logs").text))
        records = browser.get("/api/v1/runs/toy-1/logs").json()["records"]
        others = words(check_page(browser.get("/runs/toy-1/logs?actor=driver").text))
    assert "trainer-1@worker-7" in page and "trainer-1@worker-8" in page and "driver@" not in page
    assert [row["node"] for row in records if row["actor"] == "trainer-1"] == ["worker-7", "worker-8"]
    assert {row["node"] for row in records if row["actor"] != "trainer-1"} == {None}
    assert "trainer-1@" not in others
    for shown in (page, others):
        assert "node worker-8 is gone" in shown and "node worker-7" not in shown


@pytest.mark.parametrize("returned_at", [None, 1_700_000_300_000])
def test_a_runs_page_says_what_it_waits_for_and_when_it_tries_again(home: Home, returned_at: int | None) -> None:
    began = 1_700_000_000_000
    row = WaitRow("toy-2", "judge <b>'kind'</b>", "status <i>503</i>", began, began + 360_000, 4, returned_at)
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as browser:
        assert "waiting for" not in words(check_page(browser.get("/runs/toy-2").text))
        with Ledger.open(home.ledger) as ledger:
            ledger.waits.record(Fence.of_run("toy-2", 1), row)
            ledger.runs.set_state(Fence.of_run("toy-2", 1), "waiting", "it waits")
        page = words(check_page(browser.get("/runs/toy-2").text))
        part = words(parsed_part(browser.get("/runs/toy-2/now").text))
    given = "" if returned_at is None else "; its devices are given back"
    wanted = (
        "waiting for judge <b>'kind'</b> since 2023-11-14 22:13:20, next try at 2023-11-14 22:19:20"
        f"{given}: status <i>503</i>"
    )
    assert wanted in page and wanted in part


def test_a_run_without_sft_shows_none(home: Home) -> None:
    with Ledger.open(home.ledger) as ledger:
        fence = Fence.of_run("toy-2", 1)
        for run, sft in (("toy-2", "first checkpoint"), ("toy-3", "supervised fine-tuning")):
            if run == "toy-3":
                document = toy_spec().model_dump(mode="json") | {"sft": {"demonstrations": 5}}
                ledger.runs.create("toy", document, "d", 4)
                fence = ledger.leases.acquire(run, this_process("a test"), 600)
            ledger.phases.dispatch(fence, ledger.phases.plan(fence, 0, 0, "sft"))
            with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as browser:
                for page in ("", "/time", "/now", "/logs"):
                    text = browser.get(f"/runs/{run}{page}").text
                    other = ({"first checkpoint", "supervised fine-tuning"} - {sft}).pop()
                    assert sft in text and other not in text, (run, page)


def test_fragments_of_live_pages_are_not_whole_pages(browser: TestClient) -> None:
    for part in ("now", "time"):
        text = browser.get(f"/runs/toy-2/{part}").text
        assert "<html" not in text and text.lstrip().startswith(f'<div id="{part}"')


def test_a_live_page_can_show_metrics_that_appear_after_loading(browser: TestClient) -> None:
    page = check_page(browser.get("/runs/toy-2").text)
    charts = {figure.attrib["data-title"] for figure in page.iter(f"{HTML}figure")}
    learning = learning_charts("toy-2", measures.POLICY)  # The run has few of these metrics.
    always = {chart.title for chart in learning} | {drawn.title for drawn in THROUGHPUT}
    assert charts == always | {"virtual"}, "a chart for each part of the reward"
    renewing = [element.attrib for element in page.iter() if "hx-get" in element.attrib]
    assert [element["hx-get"].rpartition("/")[2] for element in renewing] == ["now", "time"]
    assert all("data-calm" in element for element in renewing)
    assert "every 15s" in renewing[0]["hx-trigger"]  # Ages grow with the clock alone.
    standing = page.find(f".//{HTML}*[@id='standing']")
    assert standing is not None and "hx-swap-oob" not in standing.attrib
    now = browser.get("/runs/toy-2/now").text
    assert '<div id="standing" data-calm hx-swap-oob="true">' in now and "● running" in words(parsed_part(now))
    assert 'href="/sign-in?next=/runs/toy-2"' in now
    form = check_page(browser.get("/runs/toy-2/rollouts").text).find(f".//{HTML}form[@hx-get]")
    assert form is not None and form.attrib["hx-select-oob"] == "#rollouts-title"


def test_chosen_metrics_and_the_display_are_in_the_address(browser: TestClient) -> None:
    page = check_page(browser.get("/runs/toy-2?metric=entropy&metric=none&smooth=0.5&log=true").text)
    charts = [figure.attrib["data-title"] for figure in page.iter(f"{HTML}figure")]
    assert charts[:2] == ["entropy", "none"]
    boxes = {
        each.attrib["value"]: "checked" in each.attrib
        for each in page.iter(f"{HTML}input")
        if each.get("name") == "metric"
    }
    assert boxes["entropy"] and boxes["none"] and boxes["reward/mean"] is False
    assert {"tokens_per_second", "evaluation/accuracy"} <= boxes.keys()
    smooth, log = (page.find(f".//{HTML}input[@name='{name}']") for name in ("smooth", "log"))
    assert smooth is not None and smooth.attrib["value"] == "0.5"
    assert log is not None and "checked" in log.attrib
    for wrong in ("smooth=1", "smooth=nan", "log=maybe"):
        assert browser.get(f"/runs/toy-2?{wrong}").status_code == 422


def test_a_spec_is_shown_with_what_was_chosen_for_the_run(browser: TestClient) -> None:
    page = check_page(browser.get("/runs/toy-2/spec").text)
    marked = {"".join(mark.itertext()).strip() for mark in page.iter(f"{HTML}mark")}
    assert {"iterations: 4", "held_out: 20", "max_new_tokens: 8"} <= marked
    assert not any(line.startswith("temperature") for line in marked), "the default"
    (text,) = ("".join(pre.itertext()) for pre in page.iter(f"{HTML}pre"))
    assert parse_spec(parse_yaml(text, "page"), "page") == toy_spec()


def test_style_sheets_name_no_unused_class() -> None:
    sheets = "".join(path.read_text() for path in (STATIC / "css").glob("*.css"))
    selectors = re.sub(r"/\*.*?\*/|\{[^{}]*\}|@media[^{]*\{", " ", sheets, flags=re.DOTALL)
    plain = re.sub(r"\[[^]]*\]|\([^)]*\)", "", selectors)
    classes = re.findall(r"\.([a-z][\w-]*)", plain)
    elements = re.findall(r"(?<![\w.#:-])([a-z][a-z0-9]*)(?![\w-])", plain)
    assert len(classes) > 50 and len(elements) > 50
    paths = [path for kind in ("html", "js") for path in OPS.rglob(f"*.{kind}")]
    paths += [path for room in ("dashboard", "web") for path in (OPS / room).rglob("*.py")]
    paths += [path for name in ("page", "drawing") for path in OPS.glob(f"*/{name}.py")]
    written = "\n".join(path.read_text() for path in paths if "vendor" not in path.parts)
    for name in set(classes) - FROM_VENDORED:
        assert re.fullmatch(r"c[1-8]", name) or re.search(rf"(?<![\w-]){name}(?![\w-])", written), f".{name}"
    for name in set(elements):
        assert re.search(rf'<{name}[ >\n]|"{name}"', written), name


def test_third_party_texts_are_shown_as_text(tmp_path: Path) -> None:
    home = Home(tmp_path / "runs")
    run = seed_hostile(home)
    where = f"/runs/{quote(run, safe='')}"
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as browser:

        def shown(path: str) -> str:
            return "".join(check_page(browser.get(path).text).itertext())

        for page in ("", "/devices", "/rollouts?iteration=1", "/checkpoints", "/faults", "/logs", "/lineage"):
            assert run in shown(where + page)
        assert run in shown("/") and run in shown(f"/compare?run={quote(run, safe='')}")
        assert shown(where).count(HOSTILE) >= 2, "alarms"
        rollouts = check_page(browser.get(f"{where}/rollouts?iteration=1&view=samples").text)
        texts = [element.text for element in rollouts.iter(f"{HTML}pre")]
        assert texts.count(HOSTILE) == texts.count(RESPONSE) == 8
        assert HOSTILE in shown(f"{where}/faults") and HOSTILE in shown(f"{where}/logs")
        given = quote(HOSTILE)
        for echo in (
            "/?text=",
            f"{where}/rollouts?iteration=1&text=",
            f"{where}/logs?actor=",
            "/compare?run=",
            "/sign-in?next=",
        ):
            check_page(browser.get(echo + given).text)
        lost = browser.get("/runs/" + quote(f"{NAME}x", safe=""))
        assert lost.status_code == 404
        check_page(lost.text)


def test_a_runs_page_links_to_the_pages_of_other_services(home: Home) -> None:
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire("toy-1", this_process("driver"), 60)
        ledger.runs.set_mlflow_run(fence, "abc")
        ledger.leases.release(fence)
    pages = Pages("http://127.0.0.1:8686", "http://127.0.0.1:5000", "http://127.0.0.1:4200")
    for known, there in ((lambda: pages, True), (Pages, False)):
        with TestClient(create_app(home, known), base_url=ORIGIN) as client:
            text = client.get("/runs/toy-1").text
        assert ('href="http://127.0.0.1:5000/#/runs/abc?workflowType=machine_learning"' in text) is there
        assert 'href="http://127.0.0.1:4200' not in text, "no session of the run has a flow run"
