"""`yatt fork`, `yatt rollback`, `yatt retry` and `yatt lineage`: change and explain a run's line of iterations.

Consumes a run's name and an iteration; produces a new run, a new branch, a renewed retry budget, or the provenance of a
checkpoint. None of the commands loses data, so none asks for confirmation. Invalid requests are refused before anything is
written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.cli.commands.driving import train
from ops.presentation.advice import to_continue
from ops.presentation.columns import Column, Columns, DigestCell
from ops.presentation.output import console, message, write, write_json, write_list
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, RunArgument, examples
from ops.terminal.people import acting_name
from yatt_core.counting import many

if TYPE_CHECKING:
    from rich.tree import Tree

    from flows.reports.lineage import BranchNode, Lineage
    from flows.reports.origins import Origin

app = typer.Typer()

ReasonOption = Annotated[str, typer.Option("--reason", help="Reason; recorded in the audit chain.")]


@app.command(
    epilog=examples(
        "yatt fork quickstart-1 --at 40",
        "yatt fork latest --at 250 --set trainer.optimizer.learning_rate=3e-4 --name slower",
    )
)
def fork(
    run: RunArgument,
    at: Annotated[int, typer.Option("--at", metavar="K", min=0, help="Iteration after which the fork begins.")],
    overrides: OverridesOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the new run. Default: the name in the spec.")] = None,
    branch: Annotated[
        int | None,
        typer.Option(min=0, help="Branch of RUN to fork from, even a superseded one. Default: the current one."),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a new run that continues from an iteration of another run; start it with `yatt resume`.

    --set can change learning rate, algorithm, rewards, sampling, target and the like. Model, seed and data cannot change.
    """
    from flows.branching import branches

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        parent = find_run(ledger, run)
    changes = [*(overrides or ()), *([f"name={name}"] if name is not None else [])]
    made = branches.fork(home=place, run=parent, at=at, overrides=changes, branch=branch, by=acting_name())
    with opened_ledger(place) as ledger:
        target = ledger.runs.find(made.run).target_iterations
    if target <= at:
        message(
            f"nothing is left to learn: {made.run} begins at its target of {many(target, 'iteration')}, which has to be raised"
        )
    if output is Output.JSON:
        write_json(asdict(made))
        return
    write(
        f"{made.run} begins after iteration {at} of {made.parent_run}{_from_checkpoint(made.checkpoint, made.replayed)}"
    )
    write(f"to start it: {to_continue(run=made.run, state='created', reason='', iteration=at, target=target)}")


@app.command(
    epilog=examples("yatt rollback latest --to 40", "yatt rollback quickstart-1 --to 40 --reason 'reward fell'")
)
def rollback(
    run: RunArgument,
    to: Annotated[int, typer.Option("--to", metavar="K", min=0, help="The last iteration to keep.")],
    reason: ReasonOption = "",
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Return a run to an earlier iteration; `yatt resume` then continues on a new branch, with new samples.

    Superseded iterations keep their ledger rows, metrics and experience, and `yatt fork --branch` can still start from them.
    """
    from flows.branching import branches

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
    done = branches.rollback(home=place, run=name, to=to, reason=reason, by=acting_name())
    if output is Output.JSON:
        write_json(asdict(done))
        return
    write(f"{name} is at iteration {to}, on branch {done.branch}{_from_checkpoint(done.checkpoint, done.replayed)}")
    if done.superseded:
        iterations = many(done.superseded, "iteration")
        write(f"superseded, but kept on record: {iterations} of branch {done.left_branch}")
    with opened_ledger(place) as ledger:
        target = ledger.runs.find(name).target_iterations
    write(f"to continue: {to_continue(run=name, state='stopped', reason='', iteration=to, target=target)}")


def _from_checkpoint(checkpoint: int, replayed: int) -> str:
    return (
        f" (from checkpoint {checkpoint}, with {many(replayed, 'update')} to replay)"
        if replayed
        else " (its checkpoint is kept)"
    )


@app.command(epilog=examples("yatt retry latest --iteration 12 --phase collect"))
def retry(
    run: RunArgument,
    iteration: Annotated[int, typer.Option(min=0, help="The iteration to be committed next.")],
    phase: Annotated[str, typer.Option(help="The phase whose retry budget is exhausted, such as collect.")],
    reason: ReasonOption = "",
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restore the full retry budget of a phase that failed too often, and resume the run."""
    from flows.branching import branches

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        name = find_run(ledger, run)
    charged = branches.forgive(home=place, run=name, iteration=iteration, phase=phase, reason=reason, by=acting_name())
    lost = ", ".join(f"{count} {kind}" for kind, count in charged.items())
    message(f"{phase} of iteration {iteration}: retry budget restored ({lost} forgiven)")
    train.drive(place, name, output)


@app.command(epilog=examples("yatt lineage latest", "yatt lineage quickstart-1 --checkpoint 50 -o json"))
def lineage(
    run: RunArgument,
    checkpoint: Annotated[
        int | None, typer.Option(metavar="K", min=0, help="Iteration of a checkpoint. Default: the newest.")
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show a checkpoint's origin (data, code, spec, placement, parents, environment) and the run's branches."""
    from flows.reports.lineage import lineage_of

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        found = lineage_of(ledger, place, find_run(ledger, run), checkpoint)
    if output is Output.JSON:
        write_json(asdict(found))
    else:
        _print_lineage(found)


SOURCES: Columns[Mapping[str, Any]] = (
    Column("source", lambda source: source["kind"]),
    Column("task or file", lambda source: source.get("task") or source.get("path")),
    Column("weight", lambda source: source["weight"], number=True),
)
PARENTS: Columns[Mapping[str, Any]] = (
    Column("run", lambda parent: parent["run"]),
    Column("iteration", lambda parent: parent["iteration"], number=True),
    Column("coefficient", lambda parent: parent["coefficient"], number=True),
    Column("weights digest", lambda parent: parent["weights_digest"]),
)
ORIGINS: Columns[Origin] = (
    Column("model from run", lambda origin: origin.run),
    Column("iteration", lambda origin: origin.iteration, number=True),
    Column("weights", lambda origin: DigestCell(origin.weights_digest)),
    Column("in this ledger", lambda origin: "yes" if origin.known else "no"),
    Column("folder", lambda origin: origin.folder),
)
"""A page has these three in sentences, with links."""


def _print_lineage(found: Lineage) -> None:
    from ops.queries.lineage import DRIFT, REVISIONS

    checkpoint = found.checkpoint
    data = found.data
    write(f"{found.run}, checkpoint of iteration {found.iteration} ({checkpoint['state']})")
    for name, value in _facts(found):
        write(f"  {name:<16}{value}")
    write_list(SOURCES, data["sources"])
    if found.merge is not None:
        write_list(PARENTS, found.merge["parents"], f"merged from {found.merge['soup']}")
    if found.origins:
        write_list(ORIGINS, found.origins)
    if found.merged_into:
        write(f"merged into {', '.join(found.merged_into)}")
    if found.drift:
        write_list(DRIFT, found.drift, "changes of the environment")
    if len(found.spec_changes) > 1:
        write_list(REVISIONS, found.spec_changes, "revisions of the spec")
    console().print(_tree(found))


def _facts(found: Lineage) -> list[tuple[str, str]]:
    checkpoint = found.checkpoint
    placement = found.placement
    line = ", ".join(f"{part.run} branch {part.branch}: {part.first}-{part.last}" for part in found.line)
    environment = ", ".join(f"{name} {value}" for name, value in found.environment.items() if name != "code")
    return [
        ("line", line),
        ("weights", checkpoint["weights_digest"]),
        ("folder", checkpoint["folder"]),
        ("damage", checkpoint.get("damage") or found.data.get("damage") or "none found"),
        ("data", found.data.get("data_digest") or "-"),
        ("code", found.code_revision or "-"),
        ("environment", environment or "-"),
        ("spec", f"revision {found.spec_revision}, {found.spec_digest[:16]}"),
        ("placement", placement["reason"] if placement else "-"),
        ("audit head", f"{found.audit_head[:16]}, at the checkpoint {_audit_head(checkpoint)[:16]}"),
    ]


def _audit_head(checkpoint: Mapping[str, Any]) -> str:
    head: str = checkpoint.get("published", {}).get("audit_head", "")
    return head or "-"


def _tree(found: Lineage) -> Tree:
    """Builds a tree of the run's branches, each below its parent branch, with forks below the branch they left."""
    from rich.tree import Tree

    nodes: dict[int, Tree] = {}
    root = Tree(found.run)
    for branch in found.branches:
        inherited = branch.parent_run not in (None, found.run)
        above = root if branch.parent_branch is None or inherited else nodes[branch.parent_branch]
        nodes[branch.number] = above.add(_branch_line(branch, inherited))
        for fork in branch.forks:
            nodes[branch.number].add(f"fork {fork['run']}, after {fork['at']}")
    return root


def _branch_line(branch: BranchNode, inherited: bool) -> str:
    begins = "" if branch.at is None else f" after {branch.at}"
    if inherited:
        begins += f" of {branch.parent_run} branch {branch.parent_branch}"
    reached = "no commit yet" if branch.last is None else f"to iteration {branch.last}"
    current = ", current" if branch.current else ""
    why = "" if branch.reason == "created" else f" ({branch.reason})"
    return f"branch {branch.number}{begins}, {reached}{current}{why}"
