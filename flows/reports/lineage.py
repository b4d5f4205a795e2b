"""The lineage of a checkpoint: its data, code, environment, spec, placement, and line of branches and runs.

Consumes the ledger and the manifests in the run's folder; produces plain values for `yatt lineage`. Writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from db.ledger import Ledger
from db.write.commit import CommitRow
from db.write.records import CheckpointRow
from flows.branching.spec_changes import PastSpecs
from flows.reports.origins import Origin, inputs_manifest, origins_of
from flows.run.control_state import ControlState
from flows.run.home import Home
from flows.soups.parents import merge_of, merged_from
from yatt_core.checkpoints.verify import CHECKPOINT_KIND
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.manifests import load_manifest

DRIFT = "drift"
FROM_MANIFEST = (
    "data_digest",
    "files",
    "train_sizes",
    "held_out_prompts",
    "probe_prompts",
    "model_path",
    "model_files",
)


@dataclass(frozen=True, slots=True)
class LineSegment:
    """The iterations of a line that were made by one branch of one run."""

    run: str
    branch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BranchNode:
    """A branch of the run.

    at: the iteration of its parent after which it begins.
    last: its last committed iteration; None if it has none.
    forks: runs that were forked from this branch.
    """

    number: int
    parent_run: str | None
    parent_branch: int | None
    at: int | None
    last: int | None
    current: bool
    reason: str
    forks: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Lineage:
    """Everything that produced a checkpoint.

    checkpoint: its row and its manifest.
    line: the parts of the line that leads to it, oldest first.
    drift: changes in the environment along the line.
    branches: all branches of the run.
    merge: for the run of a merged model: soup, preference, alpha, and the parents with their coefficients; else None.
    merged_into: runs of merged models of which this run is a parent.
    origins: the checkpoints from which the initial model came, the nearest first.
    """

    run: str
    iteration: int
    checkpoint: Mapping[str, Any]
    line: tuple[LineSegment, ...]
    data: Mapping[str, Any]
    code_revision: str | None
    environment: Mapping[str, str]
    drift: tuple[Mapping[str, Any], ...]
    spec_revision: int
    spec_digest: str
    spec_changes: tuple[Mapping[str, Any], ...]
    placement: Mapping[str, Any] | None
    audit_head: str
    branches: tuple[BranchNode, ...]
    merge: Mapping[str, Any] | None
    merged_into: tuple[str, ...]
    origins: tuple[Origin, ...]


def lineage_of(
    ledger: Ledger,
    home: Home,
    run: str,
    iteration: int | None = None,
    branch: int | None = None,
    term: int | None = None,
) -> Lineage:
    """Returns the lineage of a checkpoint, pruned or not, on a branch's line.

    iteration: the checkpoint's iteration; the latest by default.
    branch: the branch; the current one by default.
    term: the term that published the checkpoint, in case the iteration has several checkpoints.

    Raises `ConfigurationError`, which lists the available checkpoints, if there is no such checkpoint, and
    `RunNotFound` if there is no such branch.
    """
    row = _checkpoint(ledger=ledger, run=run, iteration=iteration, branch=branch, term=term)
    commit = ledger.commits.at(run, row.iteration, branch)
    if commit is None:
        raise ConfigurationError(f"run {run}: the iteration of checkpoint {row.iteration} was never committed")
    parts = tuple(
        LineSegment(part.run, part.branch, part.first, min(part.last, row.iteration))
        for part in ledger.runs.line(run, branch)
        if part.first <= row.iteration
    )
    environment = ControlState.from_json(commit.state).environment
    revision = ledger.runs.revision(commit.run, PastSpecs(ledger).revision(commit.run, commit.branch, commit.iteration))
    data = _data(home, run, revision.spec)
    return Lineage(
        run=run,
        iteration=row.iteration,
        checkpoint=_checkpoint_facts(home, row),
        line=parts,
        data=data,
        code_revision=environment.get("code"),
        environment=dict(environment),
        drift=_drift(ledger, parts),
        spec_revision=revision.revision,
        spec_digest=revision.digest,
        spec_changes=_spec_changes(ledger, commit.run, revision.revision),
        placement=_placement(ledger, commit),
        audit_head=ledger.events.head(run).hash,
        branches=branch_nodes(ledger, run),
        merge=merge_of(ledger, parts[0].run),
        merged_into=merged_from(ledger, run),
        origins=origins_of(ledger, home, inputs_manifest(home, run)),
    )


def branch_nodes(ledger: Ledger, run: str) -> tuple[BranchNode, ...]:
    """Returns the branches of a run in order of number, with the forks that begin on each."""
    current = ledger.runs.find(run).current_branch
    forks = ledger.overview.forks(run)
    nodes = []
    for row in ledger.overview.branches(run):
        own = ledger.runs.line(run, row.number)[-1]
        nodes.append(
            BranchNode(
                number=row.number,
                parent_run=row.parent_run,
                parent_branch=row.parent_branch,
                at=row.parent_iteration,
                last=own.last if own.last >= own.first else None,
                current=row.number == current,
                reason=row.reason,
                forks=tuple(
                    {"run": fork.run, "at": fork.parent_iteration} for fork in forks if fork.parent_branch == row.number
                ),
            )
        )
    return tuple(nodes)


def _checkpoint(ledger: Ledger, run: str, iteration: int | None, branch: int | None, term: int | None) -> CheckpointRow:
    rows = ledger.records.checkpoints(run, state=None, branch=branch)
    for row in rows:
        if row.is_meant(iteration, term=term):  # the rows are already those of the branch's line
            return row
    if not rows:
        raise ConfigurationError(f"run {run} has no checkpoint yet")
    known = ", ".join(str(number) for number in sorted({row.iteration for row in rows}))
    raise ConfigurationError(f"run {run}: there is no checkpoint of iteration {iteration}; available: {known}")


def _checkpoint_facts(home: Home, row: CheckpointRow) -> dict[str, Any]:
    """Returns the facts in a checkpoint's row and manifest; the manifest of a fork's copy names the parent."""
    facts: dict[str, Any] = {
        name: getattr(row, name)
        for name in ("branch", "term", "folder", "manifest_sha256", "bytes", "weights_digest", "state")
    }
    if row.state != "kept":
        return facts
    try:
        manifest = load_manifest(home.run_folder(row.run) / row.folder, CHECKPOINT_KIND, row.manifest_sha256)
    except DataError as error:
        return facts | {"damage": str(error)}
    return facts | {"published": dict(manifest.fields), "files": {k: v.sha256 for k, v in manifest.files.items()}}


def _data(home: Home, run: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sources in the spec, and the digests of the inputs made from them."""
    facts: dict[str, Any] = {"sources": spec["data"]["sources"]}
    path = home.run_folder(run) / INPUTS / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return facts | {"damage": f"{path}: {error}"}
    return facts | {name: manifest.get(name) for name in FROM_MANIFEST}


def _drift(ledger: Ledger, parts: tuple[LineSegment, ...]) -> tuple[Mapping[str, Any], ...]:
    """Returns the changes in the environment along the line, over all its runs."""
    marks = []
    for part in parts:
        for link in ledger.events.of_kind(part.run, DRIFT):
            # An event without a branch belongs to a run with a single line.
            if link.body.get("branch", part.branch) == part.branch and part.first - 1 <= link.body["at"] <= part.last:
                marks.append({"run": part.run, "branch": part.branch, **link.body})
    return tuple(marks)


def _spec_changes(ledger: Ledger, run: str, newest: int) -> tuple[Mapping[str, Any], ...]:
    """Returns the revisions up to the one in force: number, digest and reason."""
    rows = (ledger.runs.revision(run, number) for number in range(1, newest + 1))
    return tuple({"revision": row.revision, "digest": row.digest, "reason": row.reason} for row in rows)


def _placement(ledger: Ledger, commit: CommitRow) -> dict[str, Any] | None:
    """Returns the placement decision of the iteration; None for iteration 0, which has none."""
    decisions = ledger.records.decisions(commit.run, commit.branch, commit.iteration)
    if not decisions:
        return None
    last = decisions[-1]
    return {"seq": last.seq, "decision": dict(last.decision), "reason": last.reason}
