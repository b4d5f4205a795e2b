"""`yatt runs` and `yatt compare`: filters, orders, curves, and queries whose number does not grow with the runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, event

from db.core.engine import Fence
from db.ledger import Ledger
from flows.run.creation import create_run
from flows.run.home import Home
from ops.presentation import output
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run, toy_spec


@pytest.fixture
def three(home: Home) -> list[str]:
    """Creates toy-1 with 2 iterations, other-1 with 4, which is failed, and toy-2, which never began."""
    first = seed_run(home, committed=2)
    second = seed_run(home, committed=4, spec=toy_spec(8).model_copy(update={"name": "other"}), ends=False)
    with Ledger.open(home.ledger) as ledger:
        ledger.runs.set_state(Fence.of_run(second, 1), "failed", "an actor was lost")
        ledger.leases.release(Fence.of_run(second, 1))
    return [first, second, create_run(home, toy_spec())]


def listed(yatt: Yatt, *words: str) -> list[str]:
    return [row["id"] for row in yatt("runs", *words, "-o", "json").document["runs"]]


def test_runs_are_filtered_and_sorted(yatt: Yatt, three: list[str]) -> None:
    first, second, third = three
    assert listed(yatt) == [third, second, first]
    assert listed(yatt, "toy") == [third, first]
    assert listed(yatt, "--state", "failed") == [second]
    assert listed(yatt, "--sort", "reward") == listed(yatt, "--sort", "accuracy") == [second, first, third]
    assert listed(yatt, "--sort", "progress") == [second, first, third]
    assert listed(yatt, "--sort", "name") == [second, first, third]
    assert listed(yatt, "--sort", "reward", "--limit", "1") == [second]
    nothing = yatt("runs", "nobody")
    assert nothing.code == 0 and "1 failed" in nothing.err and "1 stopped" in nothing.err
    assert "1 of 3 runs" in yatt("runs", "--limit", "1").err
    assert yatt("runs", "--sort", "colour").code == 2


def test_a_line_has_the_figures_of_its_run(yatt: Yatt, three: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    row = yatt("runs", "other", "--curves", "-o", "json").document["runs"][0]
    assert (row["reward"], row["accuracy"], row["progress"], row["iteration"]) == (0.4, 0.75, 0.5, 4)
    assert [value for value in row["curve"] if value is not None] == [0.1, 0.2, 0.3, 0.4]
    for width in (80, 120):
        monkeypatch.setattr(output, "WIDTH_OF_FILES", width)
        lines = yatt("runs", "--curves").out.splitlines()
        told = next(line for line in lines if "other-1" in line)
        assert all(word in told for word in ("failed", "4/8", "0.4", "0.75", "█"))
        assert max(map(len, lines)) <= width and ("an actor" in told) == (width == 120)


def test_the_number_of_queries_does_not_grow_with_the_runs(yatt: Yatt, home: Home, three: list[str]) -> None:
    def queries() -> int:
        seen: list[str] = []
        asking = threading.get_ident()

        def count(*arguments: Any) -> None:
            if threading.get_ident() == asking:  # threads of other tests' sessions may still ask ledgers of their own
                seen.append(arguments[2])

        event.listen(Engine, "before_cursor_execute", count)
        assert yatt("runs", "--sort", "reward", "--curves").code == 0
        event.remove(Engine, "before_cursor_execute", count)
        return len(seen)

    before = queries()
    for _ in range(3):
        seed_run(home, committed=1)
    assert queries() == before > 0


def test_runs_are_compared(yatt: Yatt, home: Home, three: list[str]) -> None:
    first, second, third = three
    found = yatt("compare", first, second, "-o", "json").document
    assert [run["id"] for run in found["runs"]] == [first, second]
    differs = {row["key"]: row["values"] for row in found["differences"]}
    assert differs["iterations"] == {first: "4", second: "8"} and "seed" not in differs
    assert {row["key"]: row["values"] for row in found["metrics"]}["reward/mean"] == {first: 0.2, second: 0.4}
    assert [line["series"][1]["key"] for line in found["series"]] == ["reward/mean"] * 2
    text = yatt("compare", first, second, "--metric", "entropy", "--metric", "nonsense")
    for words in ("iterations", "reward/mean", "entropy, by iteration", f"● {first}", f"▲ {second}"):
        assert words in text.out
    assert "none of the runs has the metric nonsense" in text.err
    digests = {row["name"]: row for row in found["digests"]}
    assert list(digests) == ["weights_digest", "experience_digest", "metrics_digest"]
    shown = yatt("show", first, "-o", "json").document
    assert all(row["values"][first] == shown[name] for name, row in digests.items())
    assert digests["metrics_digest"]["equal"] is False
    (line,) = [line for line in text.out.splitlines() if "metrics_digest" in line]
    assert shown["metrics_digest"][:16] in line and "different" in line
    same = yatt("compare", first, third).out
    assert "the specs are the same" in same and " reward " in same
    (line,) = [line for line in same.splitlines() if "weights_digest" in line]
    assert "different" in line, "the third has committed nothing"
    for words in ((first,), (first, first)):
        answer = yatt("compare", *words)
        assert answer.code == 2 and "expected 2 to 8" in answer.err


def test_show_draws_curves(yatt: Yatt, three: list[str]) -> None:
    document = yatt("show", three[1], "-o", "json").document
    assert [row["mean"] for row in document["curves"] if row["key"] == "reward/mean"] == [[0.1, 0.2, 0.3, 0.4]]
    line = next(line for line in yatt("show", three[1]).out.splitlines() if line.strip().startswith("reward/mean"))
    assert "▁▃▆█" in line
