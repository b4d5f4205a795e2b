"""Shows a session's progress on standard error: a live display on a terminal, occasional lines everywhere else.

Consumes the flow's calls to its `Observer`, from any of the flow's threads; `Picture` writes no output and reads no clock.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flows.run.protocols import IterationSummary, Observer
from ops.presentation.output import console, message
from ops.presentation.words import at_the_start, duration, phase_name

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_SECONDS = 10.0
LOGGED_SECONDS = 2.0
"""Minimum pause between two lines of logged progress."""
WARNINGS_SHOWN = 3
PACE_ITERATIONS = 20
ACCURACY = "evaluation/accuracy"
LOSS = "evaluation/loss"
REWARD = "reward/mean"
SPEED = "tokens_per_second"


@dataclass(slots=True)
class Picture:
    """The current state of a session.

    sft: returns True if the spec has supervised fine-tuning; called once the run has begun.
    accuracy: (iteration, held-out accuracy) of each evaluation.
    loss: (iteration, held-out loss) of each evaluation without an accuracy, as of demonstrations.
    """

    run: str
    sft: Callable[[], bool] = lambda: True
    doing: str = "starting"
    phase: str = ""
    iteration: int = -1
    target: int = 0
    reward: float | None = None
    tokens_per_second: float | None = None
    accuracy: list[tuple[int, float]] = field(default_factory=list)
    loss: list[tuple[int, float]] = field(default_factory=list)
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=WARNINGS_SHOWN))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_ITERATIONS))

    def take(self, summary: IterationSummary) -> None:
        """Updates the state with a committed iteration."""
        self.iteration = summary.iteration
        self.target = summary.target
        self.doing = self.phase = ""
        self.reward = summary.metrics.get(REWARD, self.reward)
        self.tokens_per_second = summary.metrics.get(SPEED, self.tokens_per_second)
        if ACCURACY in summary.metrics:
            self.accuracy.append((summary.iteration, summary.metrics[ACCURACY]))
        elif LOSS in summary.metrics:
            self.loss.append((summary.iteration, summary.metrics[LOSS]))
        if summary.iteration > 0:
            self.seconds.append(summary.seconds)

    @property
    def remaining_seconds(self) -> float | None:
        """Estimated time to the target at the pace of the last iterations; None before the first."""
        if not self.seconds:
            return None
        return (self.target - self.iteration) * sum(self.seconds) / len(self.seconds)

    def facts(self) -> list[str]:
        """Returns the figures as text, leaving out those not known yet."""
        words = []
        if self.reward is not None:
            words.append(f"reward {self.reward:.3f}")
        for name, points in (("accuracy", self.accuracy), ("held-out loss", self.loss)):
            if points:
                has_first = len(points) > 1 and points[0][0] == 0
                first = f" ({at_the_start(self.sft())} {points[0][1]:.3f})" if has_first else ""
                words.append(f"{name} {points[-1][1]:.3f}{first}")
        if self.tokens_per_second is not None:
            words.append(f"{self.tokens_per_second:,.0f} tokens/s")
        if self.remaining_seconds is not None and self.iteration < self.target:
            words.append(f"about {duration(self.remaining_seconds)} remaining")
        return words


class LineObserver:
    """Writes a line for each stage, evaluation and warning, and every ten seconds while iterations are committed."""

    def __init__(
        self,
        run: str,
        write: Callable[[str], None] = message,
        now: Callable[[], float] = time.monotonic,
        sft: Callable[[], bool] = lambda: True,
    ) -> None:
        self._picture = Picture(run, sft)
        self._write = write
        self._now = now
        self._last_line = now()

    def stage(self, text: str) -> None:
        """Writes the name of the stage."""
        self._write(text)

    def phase_started(self, iteration: int, phase: str) -> None:
        """Reports SFT, the long phase before the first iteration; other phases need no line."""
        if phase == "sft" and self._picture.sft():
            self._write(phase_name(phase, sft=True))

    def committed(self, summary: IterationSummary) -> None:
        """Writes a progress line after an evaluation, or if the last line is ten seconds old."""
        self._picture.take(summary)
        evaluated = not summary.metrics.keys().isdisjoint((ACCURACY, LOSS))
        if evaluated or self._now() - self._last_line >= LINE_SECONDS:
            self._last_line = self._now()
            self._write("  ".join((f"iteration {summary.iteration}/{summary.target}", *self._picture.facts())))

    def warned(self, text: str) -> None:
        """Writes a warning."""
        self._write(f"warning: {text}")

    def settled(self, text: str) -> None:
        """Writes nothing: a stage says what is over, and lines do not stay in view."""


class LiveObserver:
    """Keeps the state that `render` draws; rich calls it a few times per second."""

    def __init__(
        self, run: str, now: Callable[[], float] = time.monotonic, sft: Callable[[], bool] = lambda: True
    ) -> None:
        self.picture = Picture(run, sft)
        self._now = now
        self._started = now()

    def stage(self, text: str) -> None:
        """Records the stage."""
        self.picture.doing = text

    def phase_started(self, iteration: int, phase: str) -> None:
        """Records the phase."""
        self.picture.phase = phase_name(phase, phase != "sft" or self.picture.sft())
        self.picture.doing = ""

    def committed(self, summary: IterationSummary) -> None:
        """Records a committed iteration."""
        self.picture.take(summary)

    def warned(self, text: str) -> None:
        """Records a warning; the newest few stay visible."""
        self.picture.warnings.append(text)

    def settled(self, text: str) -> None:
        """Takes a warning off the display."""
        with suppress(ValueError):  # newer warnings have taken its place
            self.picture.warnings.remove(text)

    def render(self) -> RenderableType:
        """Draws the progress bar, phase, figures and warnings."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        picture = self.picture
        done = max(0, picture.iteration)
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, picture.target), completed=done, width=40)
        place = f"{done}/{picture.target}" if picture.target else ""
        elapsed = duration(self._now() - self._started)
        head.add_row(Text(picture.run, style="bold"), bar, place, picture.doing or picture.phase, elapsed)
        lines = [Text("  ".join(picture.facts()))] if picture.facts() else []
        lines += [Text(f"warning: {warning}", style="yellow") for warning in picture.warnings]
        return Group(head, *lines)


@contextmanager
def logged_progress(
    *loggers: str, write: Callable[[str], None] = message, now: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Writes the progress that packages log within the context, with a pause after each line.

    loggers: names of the packages.
    """
    handler = _Lines(write, now)
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(level)


class _Lines(logging.Handler):
    """Writes records of progress; leaves warnings to those who collect them."""

    def __init__(self, write: Callable[[str], None], now: Callable[[], float]) -> None:
        super().__init__(logging.INFO)
        self._write = write
        self._now = now
        self._next_line = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the text of a record."""
        if record.levelno == logging.INFO and self._now() >= self._next_line:
            self._next_line = self._now() + LOGGED_SECONDS
            self._write(record.getMessage())


@contextmanager
def watching(run: str, sft: Callable[[], bool]) -> Iterator[Observer]:
    """Yields an observer: a live display if standard error is a terminal, lines otherwise.

    sft: returns True if the spec has supervised fine-tuning; called once the run has begun.
    """
    if not sys.stderr.isatty():
        yield LineObserver(run, sft=sft)
        return
    from rich.live import Live

    observer = LiveObserver(run, sft=sft)
    with Live(get_renderable=observer.render, console=console(to_stderr=True), refresh_per_second=4):
        yield observer
