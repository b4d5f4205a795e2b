"""The command: trains the judge of a spec and says how good it is.

Exits with 0 if the judge is written, 2 if the spec or an argument is wrong, 130 if interrupted, and 1 after another
error.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.judge.recipe import TRAINING
from yatt_core.errors import ExitCode, YattError
from yatt_core.spec import load_spec

EXAMPLE = """example:
  python -m examples.judge configs/genrm.yaml && yatt train configs/genrm.yaml"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.max_steps < 1:
        parser.error(f"--max-steps {options.max_steps}: expected 1 or more")
    warnings.simplefilter("ignore")  # library warnings are meant for developers
    origin = ""
    try:
        spec = load_spec(options.spec, options.set)
        origin = f"{options.spec}: "
        from examples.judge.folder import judge_of, make_judge  # takes seconds; --help does without it

        _, folder = judge_of(spec)
        with _progress(options.max_steps) as report:
            facts = make_judge(
                spec, training=TRAINING.model_copy(update={"max_steps": options.max_steps}), report=report
            )
    except YattError as error:
        sys.stderr.write(f"error: {origin}{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return ExitCode.INTERRUPTED
    sys.stdout.write(
        f"{folder}: {facts.accuracy:.1%} of {facts.pairs} held-out pairs classified correctly after {facts.steps} steps; "
        f"accepts {facts.false_yes:.1%} of wrong answers, rejects {facts.false_no:.1%} of right ones\n"
    )
    if facts.accuracy < TRAINING.stop_accuracy:
        sys.stderr.write(f"warning: the judge did not reach an accuracy of {TRAINING.stop_accuracy:.1%}\n")
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.judge",
        description="Trains a small judge of whether an answer is right, and writes it to the folder that the spec names.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "spec", type=Path, help="a spec with a reward part of kind generative; the judge learns from its data"
    )
    steps = TRAINING.max_steps
    parser.add_argument("--max-steps", type=int, default=steps, help=f"maximum number of steps (default {steps})")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    return parser


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[int, float], None]]:
    """Shows the steps and the last measured accuracy, on terminals only."""
    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        task = bars.add_task("reading prompts", total=steps)
        yield lambda step, accuracy: bars.update(task, completed=step, description=f"accuracy {accuracy:.1%}")


if __name__ == "__main__":
    sys.exit(main())
