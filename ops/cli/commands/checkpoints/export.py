"""`yatt export`: writes a kept checkpoint as a Hugging Face model folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ops.cli.lookup import opened_checkpoint
from ops.cli.options import Alias, HomeOption, KeptOption, Output, OutputOption, RunArgument, examples
from ops.presentation.output import console, write, write_json
from ops.presentation.words import size
from ops.process import keep_caches_inside

EXPORTS = "exports"


class FloatType(StrEnum):
    """Types that floating-point weights can be converted to."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command(
        epilog=examples(
            "yatt export latest",
            "yatt export quickstart-1 --alias champion",
            "yatt export quickstart-1 --iteration 200 --to model --dtype bfloat16",
        )
    )(export)


def export(
    run: RunArgument,
    iteration: KeptOption = None,
    alias: Annotated[Alias | None, typer.Option(help="Export the checkpoint that this alias points to.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Target folder; must not exist. Default: in exports/ of the run's folder."),
    ] = None,
    dtype: Annotated[
        FloatType | None, typer.Option(help="Convert the weights to this type. Default: the training type.")
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Export a kept checkpoint as a Hugging Face model folder: config, tokenizer and weights."""
    from flows.run.home import Home
    from yatt_core.checkpoints.export import export_model
    from yatt_core.checkpoints.publish import CheckpointIdentity
    from yatt_core.checkpoints.verify import verify_checkpoint
    from yatt_core.errors import ConfigurationError
    from yatt_core.input_building.materialise import initial_model

    place = Home.locate(home)
    keep_caches_inside(place)
    name, spec, row = opened_checkpoint(place, run, iteration, alias)
    if spec.virtual:
        raise ConfigurationError(f"run {name}: it uses virtual engines, so there is no model to export")
    folder = place.run_folder(row.run)
    target = to or place.run_folder(name) / EXPORTS / f"i{row.iteration:06d}{f'-{dtype}' if dtype else ''}"
    model = Path(initial_model(spec, folder))
    identity = CheckpointIdentity(**verify_checkpoint(folder, row.folder, row.manifest_sha256).fields)
    with _progress(f"iteration {row.iteration}") as advance:
        found = export_model(
            folder / row.folder,
            model,
            target,
            identity,
            dtype.value if dtype else None,
            advance,
            spec.trains_reward_model,
        )
    if output is Output.JSON:
        write_json({"run": name, "iteration": row.iteration, "folder": str(target.resolve()), **asdict(found)})
        return
    write(
        f"{target}: iteration {row.iteration} of {name}, {found.tensors} tensors of {found.dtype}, {size(found.bytes)}"
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar in bytes, on terminals only."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
