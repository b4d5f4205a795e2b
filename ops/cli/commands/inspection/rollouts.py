"""`yatt rollouts`: shows an iteration's sealed experience, sample by sample, verified against the ledger's digests."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.lookup import find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, RunArgument, examples
from ops.presentation.output import message, write, write_json, write_table

if TYPE_CHECKING:
    from db.ledger import Ledger
    from flows.run.home import Home

REWARD_PREFIX = "reward/"
TOOL_COLUMNS = ("turns", "tool_error")
TEXT_COLUMNS = ("prompt_ordinal", "sample", "prompt_id", "source", "prompt", "response", "finish", "weight_version")
SHOWN_CHARACTERS = 60


class Order(StrEnum):
    """Sort orders of samples."""

    PROMPT = "prompt"
    REWARD = "reward"
    LENGTH = "length"


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    lines = (
        "yatt rollouts latest --sort reward",
        "yatt rollouts latest --iteration 12 --sort reward --limit 5 --full",
        "yatt rollouts quickstart-1 --iteration 3 --prompt 130 -o json",
    )
    app.command(epilog=examples(*lines))(rollouts)


def rollouts(
    run: RunArgument,
    iteration: Annotated[
        int | None, typer.Option(min=1, help="Iteration number. Default: the newest committed one.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(help="Show only samples of the prompt with this ordinal.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of samples; 0: all.")] = 20,
    sort: Annotated[
        Order, typer.Option(help="Sort by prompt and sample, by highest reward, or by longest response.")
    ] = Order.PROMPT,
    full: Annotated[bool, typer.Option("--full", help="Print full texts instead of a table.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show the prompts, responses and rewards of an iteration."""
    from flows.run.home import Home

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
        iteration = max(1, ledger.runs.find(name).iteration) if iteration is None else iteration
        samples = read_samples(ledger, place, name, iteration)
    if prompt is not None:
        samples = [row for row in samples if row["prompt_ordinal"] == prompt]
    total = len(samples)
    samples = _sorted(samples, sort)[: limit or None]
    if output is Output.JSON:
        write_json({"run": name, "iteration": iteration, "total": total, "samples": samples})
        return
    if full:
        _print_whole(samples)
    else:
        columns = ("prompt", "sample", "reward", "correct", "tokens", "question", "response")
        write_table(columns, [_row(row) for row in samples])
    if total > len(samples):
        message(f"{len(samples)} of {total} samples shown; --limit 0 shows all")


def read_samples(ledger: Ledger, home: Home, run: str, iteration: int) -> list[dict[str, Any]]:
    """Returns an iteration's sealed samples along the current branch, even if the iteration is still in progress.

    Raises `DataError` if no samples are recorded, or if a file does not match its manifest.
    """
    from flows.files.storage import fetch_lacking, store_of
    from yatt_core.errors import DataError
    from yatt_core.experience.batch import load_table
    from yatt_core.protocols.receipts import ShardRef

    owner, branch, _ = ledger.commits.maker(run, iteration)
    shards = ledger.records.shards(owner, branch, iteration)
    if not shards:
        newest = ledger.runs.find(run).iteration
        raise DataError(f"run {run}: no experience of iteration {iteration} is recorded; the newest commit is {newest}")
    folder = home.run_folder(owner)
    fetch_lacking(store_of(ledger, owner, folder), folder, shards)
    table = load_table(folder, [ShardRef(row.folder, row.manifest_sha256) for row in shards])
    return [_sample(row) for row in table.drop(["prompt_tokens", "log_probs_sampler", "loss_mask"]).to_pylist()]


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    rewards = {key.removeprefix(REWARD_PREFIX): value for key, value in row.items() if key.startswith(REWARD_PREFIX)}
    return {
        **{name: row[name] for name in TEXT_COLUMNS},
        "reward": row["reward"],
        "rewards": rewards,
        "reward_error": row["reward_error"],
        **{name: row[name] for name in TOOL_COLUMNS if name in row},
        "correct": row["correct"],
        "truncated": row["truncated"],
        "tokens": len(row["response_tokens"]),
    }


def _sorted(samples: list[dict[str, Any]], order: Order) -> list[dict[str, Any]]:
    match order:
        case Order.PROMPT:
            return samples
        case Order.REWARD:
            return sorted(samples, key=lambda row: -row["reward"])
        case Order.LENGTH:
            return sorted(samples, key=lambda row: -row["tokens"])


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    right = "yes" if row["correct"] else "no"
    tokens = f"{row['tokens']}{' cut' if row['truncated'] else ''}"
    texts = (_shortened(row["prompt"]), _shortened(row["response"]))
    return (row["prompt_ordinal"], row["sample"], row["reward"], right, tokens, *texts)


def _shortened(text: str) -> str:
    """Returns the text on one line, cut at the front, since the end of a prompt often matters most."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"...{line[3 - SHOWN_CHARACTERS :]}"


def _print_whole(samples: list[dict[str, Any]]) -> None:
    for row in samples:
        parts = ", ".join(f"{name} {value:.4g}" for name, value in row["rewards"].items())
        write(f"--- prompt {row['prompt_ordinal']} ({row['prompt_id']}), sample {row['sample']}")
        write(f"reward {row['reward']:.4g} ({parts}), {row['tokens']} tokens, ended by {row['finish']}")
        if row["reward_error"]:
            write(f"reward failed: {row['reward_error']}")
        if row.get("tool_error"):
            write(f"tool failed: {row['tool_error']}")
        write(f"{row['prompt']}\n>>> {row['response']}\n")
