"""`yatt show --profile`: where the time of iterations goes, as tables, JSON and flame graphs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from flows.run.home import Home
from flows.run.profile_merging import merged
from flows.run.profile_record import BETWEEN, ProfilePart, ProfileRecord, write_profile
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run
from yatt_core.spent_time import DATA, ENGINE, LEDGER, OTHER, RAY, WAITING


def record(engine: float, trainers: int = 2) -> ProfileRecord:
    """Returns an iteration of 4 seconds, of which its driver waited 3 seconds for updates."""
    parts = {
        f"trainer-{number}": (
            ProfilePart("learn", ("learn",), ENGINE, engine - 0.1 * number, 1),
            ProfilePart("learn", ("learn", "read <experience>"), DATA, 0.5, 1),
            ProfilePart("learn", ("learn", "read <experience>", "fsync"), DATA, 0.25, 4),
        )
        for number in range(trainers)
    }
    driver = (
        ProfilePart("learn", ("driver", "answers"), RAY, 3.0, 1),
        ProfilePart("learn", ("driver", "write"), LEDGER, 0.5, 3),
        ProfilePart(BETWEEN, (), OTHER, 0.25, 0),
    )
    return ProfileRecord(4.0, {"driver": driver, **parts})


@pytest.fixture
def run(home: Home) -> str:
    name = seed_run(home, committed=3)
    write_profile(home.run_folder(name), 0, 2, record(1.0))
    write_profile(home.run_folder(name), 0, 3, record(2.0))
    return name


def table_of(text: str, *begins: str) -> list[list[str]]:
    """Returns the words of the lines that begin with some words."""
    lines = [line.split() for line in text.splitlines()]
    return [line for line in lines if line[: len(begins)] == list(begins)]


def test_the_parts_add_up_to_the_iteration_and_what_has_no_name_is_shown(yatt: Yatt, run: str) -> None:
    answer = yatt("show", run, "--profile", "--iteration", "3")
    assert answer.code == 0
    assert f"{run}, iteration 3: 4,000 ms from commit to commit" in answer.out
    assert table_of(answer.out, "engine", "compute") == [["engine", "compute", "2,000", "50.0%"]]
    assert table_of(answer.out, "data") == [["data", "750", "18.8%"]]
    assert table_of(answer.out, "Ray") == [["Ray", "250", "6.2%"]]
    assert table_of(answer.out, "ledger") == [["ledger", "500", "12.5%"]]
    assert table_of(answer.out, "not", "accounted") == [["not", "accounted", "500", "12.5%"]]
    assert table_of(answer.out, "iteration", "4,000") == [["iteration", "4,000", "100.0%"]]
    assert table_of(answer.out, "all") == [["all", "3,750", "93.8%"]]
    assert table_of(answer.out, "learn", "driver")[0] == ["learn", "driver", "3,500", "87.5%", "250", "500", "2,750"]
    assert table_of(answer.out, "learn", "trainer-1")[0] == ["learn", "trainer-1", "2,650", "66.2%", "1,900", "750"]


def test_json_has_seconds_of_the_mean_iteration(yatt: Yatt, run: str) -> None:
    document = yatt("show", run, "--profile", "--last", "2", "-o", "json").document
    assert (document["run"], document["recorded"], document["not_recorded"]) == (run, [2, 3], [])
    assert document["wall_seconds"] == 4.0
    assert document["kinds"]["engine"] == pytest.approx(1.5)
    assert sum(document["kinds"].values()) + document["not_accounted_seconds"] == pytest.approx(4.0)
    waited = [s for s in document["processes"] if (s["process"], s["kind"]) == ("driver", WAITING)]
    assert waited[0]["seconds"] == pytest.approx(2.25)


def test_iterations_of_an_earlier_version_are_not_recorded_which_is_not_zero(yatt: Yatt, run: str) -> None:
    text = yatt("show", run, "--profile").out
    assert text.startswith("iteration 1: not recorded: ")
    assert f"{run}, iterations 2 to 3, mean of 2" in text
    none = yatt("show", run, "--profile", "--iteration", "1")
    assert none.code == 0 and none.out == "iteration 1: not recorded: made by an earlier version, or the file is lost\n"
    document = yatt("show", run, "--profile", "--iteration", "1", "-o", "json").document
    assert document == {"run": run, "recorded": [], "not_recorded": [1], "wall_seconds": None}


def test_of_many_ranks_the_busiest_are_shown_and_the_mean_of_the_others(yatt: Yatt, home: Home, run: str) -> None:
    write_profile(home.run_folder(run), 0, 3, record(2.0, trainers=6))
    text = yatt("show", run, "--profile", "--iteration", "3").out
    assert [line[1] for line in table_of(text, "learn")[:5]] == ["driver", "trainer-0", "trainer-1", "trainer-2", "3"]
    assert "3 more of trainer, mean" in text and " 1,600 " in text


def test_ranks_that_are_recorded_together_count_as_many(yatt: Yatt, home: Home, run: str, tmp_path: Path) -> None:
    write_profile(home.run_folder(run), 0, 3, merged(record(2.0, trainers=12)))
    text = yatt("show", run, "--profile", "--iteration", "3").out
    assert [line[1] for line in table_of(text, "learn")[:5]] == ["driver", "trainer-0", "trainer-1", "trainer-2", "9"]
    assert "9 more of trainer, mean" in text and " 1,300 " in text
    file = tmp_path / "flame.svg"
    document = yatt("show", run, "--profile", "--iteration", "3", "--flame", str(file), "-o", "json").document
    assert document["others"] == {"trainer": 4}
    assert "4 more of trainer, mean: 1,800 ms, 45.0%" in file.read_text()


def test_a_flame_graph_is_one_file_that_needs_nothing_else(yatt: Yatt, run: str, tmp_path: Path) -> None:
    for name in ("flame.svg", "flame.html"):
        answer = yatt("show", run, "--profile", "--iteration", "3", "--flame", str(tmp_path / name))
        assert answer.code == 0 and f"written: {tmp_path / name}" in answer.err
    picture = (tmp_path / "flame.svg").read_text()
    page = (tmp_path / "flame.html").read_text()
    assert picture in page
    for forbidden in ("<script", "src=", "href=", "@import", "url("):
        assert forbidden not in page
    assert page.count("http") == 1, "the name of SVG's namespace"
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    told = [group.findtext(f"{space}title") or "" for group in root.iter(f"{space}g")]
    assert "critical path, learn, trainer-0, engine compute: 2,000 ms, 50.0%, engine compute" in told
    assert "trainer-0, learn, read <experience>: 750 ms, 18.8%, data" in told
    full = float(root.attrib["width"]) - 20
    for rectangle in root.iter(f"{space}rect"):
        left = float(rectangle.attrib["x"])
        assert left >= 10 and left + float(rectangle.attrib["width"]) <= full + 10.1


def test_collapsed_stacks_have_microseconds_that_add_up(yatt: Yatt, run: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.txt"
    assert yatt("show", run, "--profile", "--iteration", "3", "--flame", str(file)).code == 0
    stacks = {}
    for line in file.read_text().splitlines():
        names, _, count = line.rpartition(" ")
        stacks[names] = int(count)
    assert stacks["trainer-0;learn;read <experience>;fsync"] == 250_000
    assert stacks["trainer-0;learn"] == 2_000_000
    assert sum(count for names, count in stacks.items() if names.startswith("critical path;")) == 3_750_000
    assert sum(count for names, count in stacks.items() if names.startswith("driver;")) == 3_750_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--iteration", "2"], "--iteration: add --profile"),
        (["--last", "2", "--flame", "x.svg"], "--last, --flame: add --profile"),
        (["--profile", "--last", "2", "--iteration", "2"], "only one of them can be given"),
        (["--profile", "--iteration", "9"], "--iteration 9: it is not committed; committed: 0 to 3"),
        (["--profile", "--flame", "x.png"], "expected a name that ends in .svg, .html, .txt or .folded"),
        (["--profile", "--flame", "/no/such/folder/x.svg"], "there is no folder /no/such/folder"),
        (["--profile", "--iteration", "1", "--flame", "x.svg"], "nothing to draw: iteration 1: not recorded"),
    ],
)
def test_what_cannot_be_shown_is_refused(yatt: Yatt, run: str, words: list[str], message: str) -> None:
    answer = yatt("show", run, *words)
    assert answer.code == 2 and message in answer.err and not answer.out


def test_a_run_without_a_commit_has_no_profile(yatt: Yatt, home: Home) -> None:
    name = seed_run(home, committed=-1)
    answer = yatt("show", name, "--profile")
    assert answer.code == 2 and f"run {name} has committed no iteration yet" in answer.err
