"""`yatt placement`: its output on recorded placements, its refusals, and the pictures that it draws."""

from __future__ import annotations

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from flows.placement.explain import Gantt, RoleUse
from flows.placement.replay import ComparedDecision, PolicyComparison
from flows.placement.work_files import work_file
from flows.run.home import Home
from ops.presentation.page import ticks
from ops.presentation.placement_charts import comparison_page
from ops.presentation.placement_gantt import gantt_page
from tests.ops.conftest import Answer, Yatt
from tests.ops.seeding import seed_run, toy_spec
from tests.placement.recorded_run import judged_spec, record_run, rewrite
from yatt_core.digests import file_sha256
from yatt_core.placement.occupancy import RoleSpan

ITERATIONS = 4
HOSTILE = """<script>alert("1")</script>' onload='x' & $\\frac{1}$"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Records four iterations of `dynamic`, and a fifth that is in progress."""
    home = Home(tmp_path_factory.mktemp("recorded") / "runs")
    record_run(home, judged_spec("placement.mode=dynamic"), ITERATIONS, under_way=True)
    return home


@pytest.fixture
def run(home: Home, recorded: Home) -> str:
    """Copies the recorded run to the test's own home."""
    shutil.copytree(recorded.folder, home.folder)
    return "judged-1"


def refused(answer: Answer, says: str) -> None:
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ") and says in answer.err and "Traceback" not in answer.err


# -- explain ---------------------------------------------------------------------------------------------------------


def test_explain_has_the_reason_the_inputs_and_the_outcome(yatt: Yatt, run: str) -> None:
    found = yatt("placement", "explain", run, "3", "-o", "json").document
    assert (found["run"], found["iteration"], found["mode"], found["committed"]) == (run, 3, "dynamic", True)
    assert sorted(found["rolling"] + found["judging"]) == [0, 1, 2, 3] and found["judging"]
    assert "instances judge from the start" in found["reason"]
    assert [(seen["iteration"], seen["samples"]) for seen in found["seen"]] == [(1, 32), (2, 32)]
    for lengths in (found["seen"][0]["responses"], found["seen"][0]["judgements"]):
        assert 0 < lengths["p50"] <= lengths["p95"] <= lengths["longest"] < lengths["tokens"]
    assert found["error"] == pytest.approx(found["predicted_s"] / found["collect_s"] - 1)
    assert found["changes"] == sorted(found["changes"], key=lambda change: change["asked_s"])
    assert all(change["serves_s"] is None or change["serves_s"] >= change["asked_s"] for change in found["changes"])
    roles = {use["role"]: use for use in found["roles"]}
    assert sum(use["device_s"] for use in roles.values()) == pytest.approx(4 * found["collect_s"])
    busy = roles["R"]["busy_s"] + roles["J"]["busy_s"]
    assert found["idle_fraction"] == pytest.approx(1 - busy / (4 * found["collect_s"])) and roles[""]["busy_s"] == 0.0
    assert roles["R"]["tokens_per_s"] == pytest.approx(roles["R"]["tokens"] / found["collect_s"])


def test_explain_as_text(yatt: Yatt, run: str) -> None:
    text = yatt("placement", "explain", run, "3").out
    for words in (
        "judged-1, iteration 3 of branch 0: dynamic", "instances from the start: ", "reason ", "predicted ", "took ",
        "after the last rollout", "iteration 1 of judged-1", "requested at", "switching", "idle fraction of all devices",
    ):  # fmt: skip
        assert words in text
    first, under_way = (yatt("placement", "explain", run, number).out for number in ("1", "5"))
    assert "based on    no earlier iteration" in first
    assert "in progress" in under_way and "predicted " in under_way and "took " not in under_way


def test_explain_names_the_missing_inputs(yatt: Yatt, home: Home, run: str) -> None:
    path = work_file(home.run_folder(run), 0, 2)
    path.unlink()
    found = yatt("placement", "explain", run, "3", "-o", "json").document
    assert found["lost"] == [f"{path} is missing"]
    assert [seen["samples"] for seen in found["seen"]] == [32, None]
    assert f"{path} is missing" in yatt("placement", "explain", run, "3").out
    itself = yatt("placement", "explain", run, "2", "-o", "json").document
    assert itself["lost"] == [f"{path} is missing"] and itself["collect_s"] > 0 and itself["roles"] == []


def test_explain_leaves_out_actions_after_collect(yatt: Yatt, home: Home, run: str) -> None:
    path = work_file(home.run_folder(run), 0, 3)
    before = yatt("placement", "explain", run, "3", "-o", "json").document
    work = json.loads(path.read_text())
    late = work["telemetry"]["collect_s"] + 1.0
    work["actions"] += [
        {"t": late, "do": "take", "instance": 0, "count": 1},
        {"t": late, "do": "switch", "instance": 0, "role": "J"},
    ]
    path.write_text(json.dumps(work))
    rewrite(home, run, 3, "outcome", lambda outcome: outcome.update(work_sha256=file_sha256(path)))
    after = yatt("placement", "explain", run, "3", "-o", "json").document
    assert before["roles"] and after == before


@pytest.mark.parametrize("command", ["explain", "gantt"])
def test_an_unknown_run_or_iteration_is_refused(yatt: Yatt, run: str, command: str) -> None:
    refused(yatt("placement", command, run, "9"), "iteration 9 has no placement; available: 1 to 5")
    refused(yatt("placement", command, "other", "1"), "there is no run 'other'")
    assert yatt("placement", command, run, "0").code == 2
    assert yatt("placement", command, run, "one").code == 2
    refused(yatt("placement", command, run, "9" * 30), "999999999")


def test_a_run_without_placements_yet(yatt: Yatt, home: Home) -> None:
    run = seed_run(home, committed=0)
    refused(yatt("placement", "explain", run, "1"), "iteration 1 has no placement; available: none yet")
    refused(yatt("placement", "replay", run), "no placement yet")


def test_a_record_of_an_earlier_version_is_refused(yatt: Yatt, home: Home, run: str) -> None:
    rewrite(home, run, 2, "inputs", lambda inputs: inputs.pop("setting"))
    refused(yatt("placement", "explain", run, "2"), "iteration 2 lacks setting")


def test_explain_is_short_if_no_device_judges(yatt: Yatt, home: Home) -> None:
    run = record_run(home, toy_spec(), 2)
    text = yatt("placement", "explain", run, "2").out
    assert "all instances roll out:" in text and "learn 0.50 s" in text
    assert "all 2 decisions" in yatt("placement", "replay", run).out
    other = yatt("placement", "replay", run, "--policy", "dynamic")
    assert "iteration 1: no judge " in other.out and "nothing to compare" in other.out and other.code == 0
    refused(yatt("placement", "gantt", run, "2"), "iteration 2 to draw: no judge ")


# -- replay ----------------------------------------------------------------------------------------------------------


def test_replay_reports_that_everything_matches(yatt: Yatt, run: str) -> None:
    answer = yatt("placement", "replay", run)
    assert (answer.code, answer.err) == (0, "") and "all 5 decisions" in answer.out
    found = yatt("placement", "replay", run, "--iterations", "2:3", "-o", "json").document
    assert found["same"] and [row["iteration"] for row in found["decisions"]] == [2, 3]


def test_replay_names_the_differences_and_fails(yatt: Yatt, home: Home, run: str) -> None:
    rewrite(home, run, 2, "decision", lambda decision: decision.update(start="RJJJ"))
    rewrite(home, run, 4, "decision", lambda decision: decision["state"].update(moon="full"))
    answer = yatt("placement", "replay", run)
    assert (answer.code, answer.err) == (1, "not as recorded: 2, 4\n")
    assert re.search(r"iteration 2: roles: recorded RJJJ, now [RJ]{4}\n", answer.out)
    assert "iteration 4: state: recorded " in answer.out and '"moon": "full"' in answer.out
    found = yatt("placement", "replay", run, "--iterations", "2", "-o", "json")
    assert (found.code, found.document["differing"]) == (1, [2])
    assert yatt("placement", "replay", run, "--iterations", "2", "--policy", "dynamic").code == 1


def test_replay_fails_if_inputs_are_lost(yatt: Yatt, home: Home, run: str) -> None:
    path = work_file(home.run_folder(run), 0, 3)
    path.unlink()
    answer = yatt("placement", "replay", run, "--iterations", "4")
    assert answer.code == 1 and f"iteration 4: {path} " in answer.out and "cannot be replayed" in answer.out


def test_another_policy_is_simulated_next_to_the_recorded_one(yatt: Yatt, run: str) -> None:
    found = yatt("placement", "replay", run, "--policy", "split:1", "-o", "json").document
    assert (found["policy"], found["iterations"], found["differing"]) == ("split:1", ITERATIONS, [])
    assert [row["start"] for row in found["rows"]] == ["RRRJ"] * 5
    assert found["other_s"] == pytest.approx(sum(row["other_s"] for row in found["rows"][:ITERATIONS]))
    assert found["ratio"] == found["other_s"] / found["recorded_s"] != 1.0
    answer = yatt("placement", "replay", run, "--policy", "split:1", "--iterations", "2:3")
    assert answer.code == 0 and "3 R + 1 J" in answer.out and "split:1 over 2 iterations: " in answer.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "split"], "split:N, with N from 1 to 3"),
        (["--policy", "dynamik"], "'dynamik' is not one of colocate, split, dynamic"),
        (["--iterations", "0:2"], "A:B with 1 <= A <= B <= 5"),
        (["--iterations", "3:2"], "A:B with 1 <= A <= B <= 5"),
        (["--iterations", "2:6"], "A:B with 1 <= A <= B <= 5"),
        (["--iterations", "٢:٣"], "A:B, such as 1:5"),
        (["--iterations", "all"], "A:B, such as 1:5"),
        (["--out", "x.html"], "add --policy"),
        (["--policy", "dynamic", "--out", "x.svg"], "--out x.svg: expected a name that ends in .html or .png"),
        (["--policy", "dynamic", "--out", "nowhere/x.png"], "there is no folder"),
    ],
)
def test_refusals_of_replay(yatt: Yatt, run: str, words: list[str], says: str) -> None:
    refused(yatt("placement", "replay", run, *words), says)


# -- pictures --------------------------------------------------------------------------------------------------------


def test_the_gantt_as_text_has_every_instance(yatt: Yatt, run: str) -> None:
    text = yatt("placement", "gantt", run, "3").out
    lines = [line for line in text.splitlines() if re.match(r" +\d+(-\d+)? [█▒·]+$", line)]
    numbers = [int(number) for line in lines for number in re.findall(r"\d+", line)]
    assert lines and min(numbers) == 0 and max(numbers) == 3 and all(len(line.split()[1]) == 72 for line in lines)
    assert "idle fraction of all devices: " in text
    found = yatt("placement", "gantt", run, "3", "-o", "json").document
    assert found["instances"] == 4 and {span["role"] for span in found["spans"]} <= {"R", "J", ""}
    assert all(0.0 <= share <= 1.0 for share in found["busy"].values()) and 0.0 < found["idle_fraction"] < 1.0
    refused(yatt("placement", "gantt", run, "5"), "iteration 5 to draw: ")


@pytest.mark.parametrize(
    "command", [("gantt", "3"), ("replay", "--iterations", "1", "--policy", "colocate")], ids=["gantt", "comparison"]
)
def test_pictures_are_drawn_to_files(yatt: Yatt, tmp_path: Path, run: str, command: tuple[str, ...]) -> None:
    page = tmp_path / "drawn.html"
    image = tmp_path / "drawn.PNG"
    for path in (page, image):
        answer = yatt("placement", command[0], run, *command[1:], "--out", str(path))
        assert answer.code == 0 and f"drawn: {path}" in answer.err
    assert image.read_bytes().startswith(b"\x89PNG")
    assert Page(page.read_text(encoding="utf-8")).items == (4 if command[0] == "gantt" else 1)


def test_a_picture_that_cannot_be_written_is_refused(yatt: Yatt, tmp_path: Path, run: str) -> None:
    (tmp_path / "a.html").mkdir()
    for command in (("gantt", run, "2"), ("replay", run, "--policy", "colocate")):
        answer = yatt("placement", *command, "--out", str(tmp_path / "a.html"))
        assert answer.code == 2 and "a.html: cannot be written: Is a directory" in answer.err


def test_without_matplotlib_a_png_is_refused_and_a_page_is_not(
    yatt: Yatt, tmp_path: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused(yatt("placement", "gantt", run, "3", "--out", str(tmp_path / "x.png")), "FILE.html")
    assert yatt("placement", "gantt", run, "3", "--out", str(tmp_path / "x.html")).code == 0


class Page(HTMLParser):
    """Parses a page, and checks that elements are closed. items: the elements that the arrow keys select."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.said: list[str] = []
        self.items = 0
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if dict(attrs).get("class") == "item":
            self.items += 1
            assert dict(attrs)["aria-label"], "it has a label for screen readers"

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def gantt(instances: int = 2) -> Gantt:
    spans = [RoleSpan(index, "R", 0.0, 2.5) for index in range(instances)] + [RoleSpan(0, "J", 2.5, 4.0)]
    roles = (
        RoleUse("R", 5.0, 2.5, 0.5, 70, 17.5),
        RoleUse("J", 1.5, 1.5, 0.0, 7, 2.0),
        RoleUse("", 0.0, 0.0, 0.0, 0, 0.0),
    )
    return Gantt(
        HOSTILE, 3, HOSTILE, instances, 4.0, 0.5, tuple(spans), {"0/R": 0.5, "0/J": 1.0}, roles, {HOSTILE: 1.0}
    )


def comparison() -> PolicyComparison:
    row = ComparedDecision(1, "RJ", "RR", False, HOSTILE, 2.0, 2.5, None, (HOSTILE,))
    return PolicyComparison(HOSTILE, HOSTILE, (row,), 1, 2.0, 2.5, 3.0, 1.2, ())


@pytest.mark.parametrize("markup", [gantt_page(gantt()), comparison_page(comparison())], ids=["gantt", "comparison"])
def test_pages_escape_hostile_names_and_load_nothing_external(markup: str) -> None:
    page = Page(markup)
    assert page.tags.count("script") == 1 and not {"img", "link", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert any(HOSTILE in text for text in page.said), "and they are shown unchanged"
    assert "default-src 'none'" in dict(page.attributes)["content"] or any(
        value and "default-src 'none'" in value for _, value in page.attributes
    )
    assert not re.search(r"https?://|src=|@import|url\(", markup)
    assert "prefers-color-scheme: dark" in markup and 'lang="en"' in markup and "keydown" in markup


def test_bars_are_as_long_as_their_spans_and_filled_by_their_busy_share() -> None:
    markup = gantt_page(gantt())
    rows = re.findall(r'<g class="item".*?</g>', markup)
    assert len(rows) == 2
    bars = [
        (kind, float(x), float(width), float(height))
        for kind, x, width, height in re.findall(
            r'<rect class="([a-z ]+)" x="([\d.]+)" width="([\d.]+)" y="[\d.]+" height="([\d.]+)"', rows[0]
        )
    ]
    faint, filled, judging, _ = bars
    assert (faint[0], filled[0], judging[0]) == ("first band", "first", "second band")
    assert faint[2] / judging[2] == pytest.approx(2.5 / 1.5, rel=1e-3) and judging[1] == pytest.approx(
        faint[1] + faint[2]
    )
    assert filled[3] == pytest.approx(faint[3] / 2)
    assert "instance 0: rollout 0.00 to 2.50 s, judge 2.50 to 4.00 s; busy 50% of its time as rollout" in rows[0]


def test_a_large_pool_keeps_every_instance() -> None:
    assert Page(gantt_page(gantt(512))).items == 512


@pytest.mark.parametrize("longest", [0.0, 0.03, 0.9, 1.0, 7.2, 18.0, 447.7, 90_000.0])
def test_axes_have_a_few_round_numbers(longest: float) -> None:
    marks = ticks(longest)
    assert marks[0] == 0.0 and marks[-1] <= longest and len(marks) <= 10
    assert not longest or len(marks) >= 3
