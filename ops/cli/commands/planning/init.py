"""`yatt init`: writes a first spec and a reward file for the user's own data and model.

Consumes options, or answers to questions on a terminal. Writes two files, or one JSON object that names them; never
replaces a file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ops.cli.options import Output, OutputOption, examples
from ops.presentation.output import message, write, write_json

if TYPE_CHECKING:
    from ops.starter.looks import DataLook

Answer = TypeVar("Answer")
OWN = "new"
"""Answer to the question for a reward function that has yet to be written."""


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    lines = (
        "yatt init",
        "yatt init --data questions.jsonl --model models/small-instruct",
        "yatt init runs/sums --data questions.jsonl --model models/small-instruct --reward my_reward.py:score",
    )
    app.command(epilog=examples(*lines))(init)


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write; created if needed.")] = Path(),
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", help="JSON Lines, Parquet, or a dataset's folder.")
    ] = None,
    model: Annotated[Path | None, typer.Option("--model", metavar="DIR", help="Hugging Face folder.")] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="FILE:FUNCTION",
            help="Your reward function, or the name of a built-in one. Default: write reward.py.",
        ),
    ] = None,
    prompt_field: Annotated[str | None, typer.Option(help="Key of the prompt. Default: the usual names.")] = None,
    answer_field: Annotated[str | None, typer.Option(help="Key of the answer. Default: the usual names.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the data file's name.")] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Write a commented spec and a reward file that run, from a data file and a model's folder.

    Asks for what the options leave out if it runs on a terminal. Sizes are chosen to fit rows, model and machine.
    """
    from ops.starter.looks import look_at_data, look_at_model
    from ops.starter.writing import default_name, write_starter

    asks = sys.stdin.isatty() and output is Output.TEXT

    def seen(path: Path) -> DataLook:
        return look_at_data(path, prompt_field, answer_field)

    rows = _found(data, "--data", "Data file (JSON Lines, Parquet, or the folder of a dataset)", seen, asks)
    network = _found(model, "--model", "Model (a Hugging Face folder)", look_at_model, asks)
    if asks and reward is None:
        question = f"Reward function (FILE:FUNCTION, or {OWN} to write reward.py)"
        reward = typer.prompt(question, default=OWN, err=True)
        reward = None if reward == OWN else reward
    written = write_starter(folder, name or default_name(rows.path), rows, network, reward)
    if output is Output.JSON:
        write_json({"spec": str(written[0]), "reward": str(written[1]) if len(written) > 1 else None})
        return
    answers = f"answers in {rows.answer_field!r}" if rows.answer_field else "no answers"
    more = "" if rows.complete else "more than "
    message(f"{rows.path}: {more}{rows.rows:,} rows, prompts in {rows.prompt_field!r}, {answers}")
    for path in written:
        write(f"wrote {path}")
    write(f"next: yatt check {written[0]}, then yatt train {written[0]}")


def _found(given: Path | None, option: str, question: str, look: Callable[[Path], Answer], asks: bool) -> Answer:
    """Returns what a path contains; asks for the path, until it can be used, if it is not given."""
    from yatt_core.errors import ConfigurationError, DataError

    if given is not None:
        return look(given)
    if not asks:
        raise ConfigurationError(f"{option}: missing, and there is no terminal to ask; see `yatt init --help`")
    while True:
        try:
            return look(Path(typer.prompt(question, err=True)).expanduser())
        except (ConfigurationError, DataError) as error:
            message(f"error: {error}")
