"""`yatt promote` and `yatt aliases`: set and show a run's candidate, champion and rollback checkpoints.

Consumes a run's name, an alias and a reason; records an audited promotion in the ledger and updates MLflow's model registry.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.presentation.output import message, write, write_json, write_list
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import Alias, HomeOption, KeptOption, Output, OutputOption, RunArgument, examples
from ops.terminal.people import calling, line_of_text, named

if TYPE_CHECKING:
    from db.write.aliases import AliasMove

app = typer.Typer()

FACTS = ("number", "branch", "iteration", "term", "by", "why", "at", "weights_digest", "state")


@app.command(
    epilog=examples(
        "yatt promote latest --to candidate --why 'best held-out accuracy so far'",
        "yatt promote quickstart-3 --iteration 40 --to champion --why 'won against iteration 20' --by ann -o json",
    )
)
def promote(
    run: RunArgument,
    to: Annotated[Alias, typer.Option("--to", help="The alias to point at the checkpoint.")],
    why: Annotated[str, typer.Option("--why", help="Reason; recorded in the audit chain and shown in MLflow.")],
    iteration: KeptOption = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="Who decided, where no gate does. Default: your login name."),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Verify a kept checkpoint and give it an alias; the previous champion becomes `rollback`.

    Checkpoints with an alias are never pruned. MLflow's registry is updated now, or once MLflow is reachable again.
    """
    from ops.integrations.promotion import deliver
    from ops.integrations.promotion import promote as promote_checkpoint

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
    by = named(by, "promotes the checkpoint")
    why = line_of_text("--why", why)
    done = promote_checkpoint(place, name, to.value, iteration, by=by, why=why, person=calling().person)
    waits = deliver(place, name) if done.model else None
    if waits:
        message(f"MLflow will be updated later: {waits}")
    if output is Output.JSON:
        moves = [{"alias": move.alias, **_facts(move)} for move in done.moves]
        write_json(asdict(done) | {"moves": moves, "waits": waits})
        return
    if done.approval is not None:
        write(
            f"{name}: iteration {done.iteration} waits for approval {done.approval}; `yatt approvals` lists who may decide"
        )
    elif not done.moves:
        write(f"{name}: {to} is already iteration {done.iteration}; nothing changed")
    for move in done.moves:
        write(f"{name}: {move.alias} is now iteration {move.iteration} (branch {move.branch})")


@app.command(epilog=examples("yatt aliases latest", "yatt aliases quickstart-3 -o json"))
def aliases(run: RunArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show which checkpoints a run's aliases point to, and the history of promotions: who, when and why."""
    from flows.delivery.registry import registered_model
    from ops.queries.checkpoints import MOVES

    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        model = registered_model(ledger.runs.find(name).spec_name)
        current = ledger.aliases.current(name)
        history = ledger.aliases.history(name)
    if output is Output.JSON:
        write_json(
            {
                "run": name,
                "model": model,
                "aliases": {alias: _facts(move) for alias, move in current.items()},
                "history": [{"alias": move.alias, **_facts(move)} for move in history],
            }
        )
        return
    if not history:
        write(f"{name} has no aliases yet; set one with `yatt promote {name} --to candidate --why ...`")
        return
    write_list(MOVES, current.values())
    write_list(MOVES, reversed(history), title="all promotions, newest first")


def _facts(move: AliasMove) -> dict[str, Any]:
    return {name: getattr(move, name) for name in FACTS}
