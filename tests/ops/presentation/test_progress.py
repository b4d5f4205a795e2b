"""The progress shown to a person while a run advances, on a clock controlled by the test."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from flows.run.protocols import IterationSummary
from ops.presentation.progress import LineObserver, LiveObserver, Picture, logged_progress, watching
from ops.presentation.words import duration, size

METRICS = {"reward/mean": 0.25, "tokens_per_second": 1500.0}


def summary(iteration: int, accuracy: float | None = None, seconds: float = 2.0) -> IterationSummary:
    metrics = METRICS if accuracy is None else METRICS | {"evaluation/accuracy": accuracy}
    return IterationSummary(iteration, 40, metrics, seconds)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_at_each_evaluation_and_at_least_every_ten_seconds() -> None:
    lines: list[str] = []
    clock = Clock()
    observer = LineObserver("toy-1", lines.append, clock)
    observer.stage("starting Ray")
    observer.phase_started(0, "sft")
    observer.committed(IterationSummary(0, 40, {"evaluation/accuracy": 0.1}, 5.0))
    for iteration in range(1, 8):
        clock.now += 2.0
        observer.phase_started(iteration, "collect")
        observer.committed(summary(iteration))
    observer.committed(summary(8, accuracy=0.5))
    observer.warned("collect failed")
    assert lines == [
        "starting Ray",
        "supervised fine-tuning",
        "iteration 0/40  accuracy 0.100",
        "iteration 5/40  reward 0.250  accuracy 0.100  1,500 tokens/s  about 1 min 10 s remaining",
        "iteration 8/40  reward 0.250  accuracy 0.500 (after SFT 0.100)  1,500 tokens/s  about 1 min 4 s remaining",
        "warning: collect failed",
    ]


def test_the_pace_is_that_of_the_last_iterations_without_sft() -> None:
    picture = Picture("toy-1")
    picture.take(summary(0, seconds=500.0))
    assert picture.remaining_seconds is None
    for iteration in range(1, 21):
        picture.take(summary(iteration, seconds=10.0))
    assert picture.remaining_seconds == pytest.approx(200.0)
    for iteration in range(21, 41):
        picture.take(summary(iteration, seconds=1.0))
    assert picture.remaining_seconds == 0.0
    assert not any("remaining" in word for word in picture.facts())


def test_the_live_picture_shows_everything() -> None:
    clock = Clock()
    observer = LiveObserver("toy-1", clock)
    observer.stage("starting Ray")
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(observer.render())
    observer.committed(summary(0, accuracy=0.1))
    observer.committed(summary(12, accuracy=0.5))
    observer.phase_started(13, "collect")
    for number in range(5):
        observer.warned(f"trouble {number} [bold]")
    clock.now += 75.0
    console.print(observer.render())
    text = console.export_text()
    first, _, second = text.partition("12/40")
    assert "starting Ray" in first
    for words in (
        "collect",
        "1 min 15 s",
        "reward 0.250",
        "accuracy 0.500 (after SFT 0.100)",
        "1,500 tokens/s",
        "trouble 4 [bold]",
    ):
        assert words in second
    assert "trouble 1" not in second
    observer.settled("trouble 4 [bold]")
    observer.settled("trouble 0 [bold]")
    console.print(observer.render())
    last = console.export_text(clear=False).rpartition("12/40")[2]
    assert "trouble 3" in last and "trouble 4" not in last, "what is over is taken off"


def test_without_a_terminal_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with watching("toy-1", lambda: True) as observer:
        assert isinstance(observer, LineObserver)
        observer.stage("starting")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "starting\n")


def test_durations_and_sizes_in_readable_form() -> None:
    assert [duration(s) for s in (0.25, 59.6, 60, 3599, 3600, 200_000)] == [
        "0.2 s",
        "60 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "2 d 7 h",
    ]
    assert [size(n) for n in (512, 2048, 5 << 30, 3 << 40)] == ["512 B", "2.0 KiB", "5.0 GiB", "3.0 TiB"]


def test_sft_is_named_only_where_the_spec_has_it() -> None:
    lines: list[str] = []
    plain = LineObserver("toy-1", lines.append, sft=lambda: False)
    live = LiveObserver("toy-1", sft=lambda: False)
    for iteration, accuracy in ((0, 0.1), (8, 0.5)):
        for observer in (plain, live):
            observer.phase_started(iteration, "sft" if iteration == 0 else "collect")
        doing = live.picture.phase
        plain.committed(summary(iteration, accuracy))
        assert "fine-tuning" not in doing
    assert "accuracy 0.500 (before training 0.100)" in lines[-1] and not any("SFT" in line for line in lines)


def test_logged_progress_is_shown_with_pauses_and_only_within_the_context() -> None:
    lines: list[str] = []
    clock = [0.0]
    log = logging.getLogger("yatt_core.datasets.rows")
    with logged_progress("yatt_core.datasets", write=lines.append, now=lambda: clock[0]):
        for second in range(5):
            clock[0] = float(second)
            log.info("%d rows read", second)
            log.warning("collected elsewhere")
    log.info("after")
    assert lines == ["0 rows read", "2 rows read", "4 rows read"]
