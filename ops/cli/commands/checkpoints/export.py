"""`yatt export`: writes a kept checkpoint as a Hugging Face model folder, or the experience as Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.run.home import Home
from ops.presentation.output import console, message, write, write_json
from ops.presentation.words import size
from ops.process import keep_caches_inside
from ops.terminal.options import Alias, HomeOption, KeptOption, Output, OutputOption, RunArgument, examples
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

app = typer.Typer()


class FloatType(StrEnum):
    """Types that floating-point weights can be converted to."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@app.command(
    epilog=examples(
        "yatt export latest",
        "yatt export quickstart-1 --alias champion",
        "yatt export lora-1 --adapter --to adapter",
        "yatt export quickstart-1 --iteration 200 --to model --dtype bfloat16",
        "yatt export quickstart-1 --experience --iterations 100:200 --to samples",
    )
)
def export(
    run: RunArgument,
    iteration: KeptOption = None,
    alias: Annotated[Alias | None, typer.Option(help="Export the checkpoint that this alias points to.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Target folder; must not exist. Default: in exports/ of the run's folder."),
    ] = None,
    dtype: Annotated[
        FloatType | None, typer.Option(help="Type of the weights. Default: that of the model with which the run began.")
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Only the low-rank adapters of a LoRA run, in peft's format.")
    ] = False,
    experience: Annotated[
        bool, typer.Option("--experience", help="The samples in place of the model: a Parquet file per iteration.")
    ] = False,
    iterations: Annotated[
        str | None,
        typer.Option(
            metavar="A:B",
            help="With --experience: iterations A to B, both included. Default: all whose files are kept.",
        ),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Export a kept checkpoint as a Hugging Face model folder: config, tokenizer and weights.

    Weights of a LoRA run are exported merged; with --adapter its adapters alone, for peft and vLLM. With --experience the
    samples, as a folder that pandas, DuckDB and datasets read whole.
    """
    from ops.terminal.exporting import export_checkpoint, export_run_adapter

    if experience:
        if any((iteration is not None, alias, dtype, adapter)):
            raise ConfigurationError(
                "--experience: exports samples, so leave out --iteration, --alias, --dtype, --adapter"
            )
        _export_samples(home=Home.locate(home), run=run, to=to, iterations=iterations, output=output)
        return
    if iterations is not None:
        raise ConfigurationError("--iterations: selects samples, with --experience; a checkpoint by --iteration")
    if adapter and dtype is not None:
        raise ConfigurationError("--adapter: adapters are exported in float32, as they are trained; leave out --dtype")
    place = Home.locate(home)
    keep_caches_inside(place)
    if adapter:
        done = export_run_adapter(home=place, run=run, iteration=iteration, alias=alias, to=to)
    else:
        with _progress() as progress:
            done = export_checkpoint(
                home=place,
                run=run,
                iteration=iteration,
                alias=alias,
                to=to,
                dtype=dtype.value if dtype else None,
                progress=progress,
            )
    found = done.written
    if output is Output.JSON:
        folder = str(done.folder.resolve())
        facts = {"run": done.run, "iteration": done.iteration, "folder": folder, **asdict(found)}
        write_json({**facts, "warning": done.warning})
        return
    what = f"iteration {done.iteration} of {done.run}"
    write(f"{done.folder}: {what}, {many(found.tensors, 'tensor')} of {found.dtype}, {size(found.bytes)}")
    if done.warning:
        message(f"warning: {done.warning}")


def _export_samples(home: Home, run: str, to: Path | None, iterations: str | None, output: Output) -> None:
    from ops.terminal.experience import export_experience

    with _bar() as advance:
        done = export_experience(home=home, run=run, to=to, iterations=iterations, advance=advance)
    if output is Output.JSON:
        write_json({**asdict(done), "folder": str(done.folder.resolve())})
        return
    first = done.iterations[0]
    last = done.iterations[-1]
    what = (
        f"{many(done.samples, 'sample')} of {many(len(done.iterations), 'iteration')} ({first} to {last}) of {done.run}"
    )
    write(f"{done.folder}: {what}, {size(done.bytes)}")
    if done.lacking:
        message(
            f"left out: {many(len(done.lacking), 'iteration')} whose files were deleted; --iterations refuses such ones"
        )


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar in iterations, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        task = bars.add_task("iterations", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def _progress() -> Iterator[Callable[[int], Callable[[int, int], None]]]:
    """Shows a progress bar in bytes for the iteration that it is told, on terminals only."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:

        def begin(iteration: int) -> Callable[[int, int], None]:
            task = bars.add_task(f"iteration {iteration}", total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield begin
