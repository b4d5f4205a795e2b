"""`yatt approvals`, `yatt approve` and `yatt reject`: what waits for a decision, and the decision.

Consumes the ledger and the caller; records who decided what and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.people.roles import held_roles
from ops.presentation.output import message, write, write_json, write_list
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from ops.terminal.people import calling, line_of_text

if TYPE_CHECKING:
    from ops.approvals.view import Choice, ListedApproval

app = typer.Typer()

NumberArgument = Annotated[int, typer.Argument(metavar="ID", min=1, help="Number of the approval.")]
WhyOption = Annotated[str, typer.Option("--why", help="Reason; recorded in the audit chain.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Start a driver in the background if the run waited for this approval.")
]
PIPELINE = "pipeline"
"""The kind of the approvals of pipelines, and the first word of their subjects."""


@app.command(epilog=examples("yatt approvals", "yatt approvals --all --run quickstart-3", "yatt approvals -o json"))
def approvals(
    run: Annotated[str | None, typer.Option("--run", help="Show only the approvals of this run.")] = None,
    decided: Annotated[bool, typer.Option("--all", help="Show decided approvals too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of approvals; the newest are kept.")] = 50,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List what waits for a decision, newest first: the question, who may decide, and the deadline."""
    from ops.approvals.view import approvals as find

    with opened_ledger(Home.locate(home)) as ledger:
        found = find(ledger, limit, not decided, None if run is None else find_run(ledger, run))
    if output is Output.JSON:
        write_json({"approvals": [asdict(row) for row in found]})
    elif not found:
        write("no approvals" if decided else "nothing waits for a decision; `yatt approvals --all` shows earlier ones")
    else:
        _write(found)


def _write(found: Sequence[ListedApproval]) -> None:
    from ops.approvals.view import DECIDED, WAITING

    waiting = [row for row in found if row.is_pending]
    decided = [row for row in found if not row.is_pending]
    if waiting:
        write_list(WAITING, waiting, "waiting for a decision")
    if decided:
        write_list(DECIDED, decided, "decided")


@app.command(epilog=examples("yatt approve 17 --why 'accuracy still rises'", "yatt approve 17 --why ok --resume"))
def approve(
    number: NumberArgument,
    why: WhyOption,
    resume: ResumeOption = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Approve what waits: a run may go on, a checkpoint may become champion. The decision is final."""
    place = Home.locate(home)
    done = _decide(place, number, "approve", why)
    started = _resume(place, done) if resume else None
    _tell_registry(place, done)
    if output is Output.JSON:
        write_json(asdict(done) | {"driver": started})
        return
    write(f"approval {done.id} of {done.subject} is approved: {done.question}")
    if started is not None:
        write(f"{done.run} is driven by process {started}")
    elif done.kind == PIPELINE:
        write(f"`yatt pipeline resume {done.subject.removeprefix(f'{PIPELINE} ')}` continues the pipeline")
    elif done.run is not None and done.kind != "promotion":
        write(f"`yatt resume {done.run}` continues the run")


@app.command(epilog=examples("yatt reject 17 --why 'entropy has collapsed'"))
def reject(number: NumberArgument, why: WhyOption, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Reject what waits: the run stays where it is, the checkpoint does not become champion. The decision is final."""
    done = _decide(Home.locate(home), number, "reject", why)
    if output is Output.JSON:
        write_json(asdict(done))
    else:
        write(f"approval {done.id} of {done.subject} is rejected: {done.question}")


def _decide(home: Home, number: int, choice: Choice, why: str) -> ListedApproval:
    """Decides under the caller's name and roles; a name that anyone could give would say nothing of who decided."""
    from db.write.approvals import ApprovalDecision
    from ops.approvals.view import DECISION_OF, decide

    by = calling().person
    verdict = ApprovalDecision(
        decision=DECISION_OF[choice], by=by.name, why=line_of_text("--why", why), via="cli", roles=held_roles(by.role)
    )
    with opened_ledger(home) as ledger:
        return decide(ledger, number, verdict)


def _tell_registry(home: Home, approval: ListedApproval) -> None:
    """Sends the promotion that was approved to MLflow now; otherwise the run's driver or the service group does it later."""
    from ops.integrations.promotion import deliver

    if approval.kind != "promotion" or approval.run is None:
        return
    waits = deliver(home, approval.run)
    if waits:
        message(f"MLflow will be updated later: {waits}")


def _resume(home: Home, approval: ListedApproval) -> int | None:
    """Starts a driver of the run that waited for an approval; returns its process, None if no run waited."""
    from flows.gates.waiting import may_go_on
    from ops.terminal.detached import start_detached

    with opened_ledger(home) as ledger:
        if approval.run is None or not may_go_on(ledger, approval.run):
            return None
        started = start_detached(home, ledger, approval.run, accept_drift=False)
    if started.exit_code:
        raise typer.Exit(started.exit_code)
    return started.pid
