"""Makes a run of a merged model: a checkpoint of iteration 0, its commit, and a record of the models it was merged from.

Consumes a soup whose backbones have ended, and a preference. Produces a run like any other: it can be evaluated, exported,
promoted, forked and trained on. Its reward is the preference's; inputs and everything of the checkpoint but the weights are those
of the supervised model. A run is unfinished until its audit chain has the link `merge`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.commit import IterationCommit
from db.write.records import CheckpointRow, ChoiceRow
from flows.branching.inheritance import copy_folder, link_file
from flows.delivery.registry import published_entries
from flows.files.storage import claim_store, store_of, verify_kept
from flows.run.clock import SystemClock
from flows.run.control_state import ControlState
from flows.run.creation import first_entries, write_spec
from flows.run.home import Home
from flows.run.lease import operator_lease
from flows.soups.merging import MergedWeights
from flows.soups.mixing import Preference
from flows.soups.outcome import merge_terms
from flows.soups.parents import MERGE
from flows.soups.record import MERGED, SoupRecord
from yatt_core import durable
from yatt_core.checkpoints.contents import ADAPTERS, WEIGHTS, open_tensors
from yatt_core.checkpoints.publish import CheckpointIdentity, publish_checkpoint
from yatt_core.code_files import settle_code
from yatt_core.digests import file_sha256
from yatt_core.errors import ConfigurationError
from yatt_core.input_building.settling import fetch_inputs
from yatt_core.inputs.manifest import INPUTS, MANIFEST
from yatt_core.keys import checkpoint_folder
from yatt_core.manifests import FileEntry
from yatt_core.spec import RunSpec, override_spec
from yatt_core.storage.lacking import fetch_lacking
from yatt_core.wire.part_files import digest_of
from yatt_core.wire.whole_files import sizes_of, write_whole_tensors


@dataclass(frozen=True, slots=True)
class MergedRun:
    """A run of a merged model.

    alpha: extrapolation from the supervised model.
    parents: run, branch, iteration, weights digest and coefficient of each model.
    """

    run: str
    soup: str
    preference: Preference
    alpha: float
    weights_digest: str
    parents: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class _Ingredient:
    row: CheckpointRow
    coefficient: float


def merge_run(home: Home, soup: str, preference: Preference, alpha: float = 0.0) -> MergedRun:
    """Merges a soup's backbones for a preference into a new run.

    Raises `ConfigurationError` if the soup is not ready, and `DataError` for a damaged checkpoint.
    """
    with Ledger.open(home.ledger, migrate=False) as ledger:
        record = SoupRecord.of(ledger, soup)
        beta, rows = record.chosen_checkpoints()
        own, supervised = merge_terms(preference, beta, alpha)
        start = record.checkpoint(record.name, 0)
        ingredients = [_Ingredient(row, coefficient) for row, coefficient in zip(rows, own, strict=True)]
        if alpha:
            ingredients.append(_Ingredient(start, supervised))
        for row in (*rows, start):
            _bring(home, ledger, row)
        weights = MergedWeights(
            [open_tensors(home.run_folder(each.row.run) / each.row.folder, WEIGHTS) for each in ingredients],
            [each.coefficient for each in ingredients],
        )
        parents = tuple(_parent(ledger, each) for each in ingredients)
        spec = _spec_of(record, preference)
        said = ", ".join(f"{weight:g}" for weight in preference)
        reason = f"merged from soup {record.name} for the preference {said}"
        run = ledger.runs.create(
            spec_name=spec.name,
            spec=spec.model_dump(mode="json"),
            digest=spec.digest,
            target_iterations=spec.iterations,
            reason=reason,
        ).id
        with operator_lease(ledger, run, f"yatt soup merge of {record.name}") as lease:
            fence = lease.fence
            _make_folder(home=home, ledger=ledger, fence=fence, spec=spec, soup=record.name)
            digest = _publish(home=home, ledger=ledger, fence=fence, spec=spec, start=start, weights=weights)
            facts = {"soup": record.name, "beta": beta, "preference": list(preference), "alpha": alpha}
            body = {**facts, "weights_digest": digest, "parents": parents}
            ledger.events.append(run, MERGE, body, fence)
            ledger.runs.set_state(fence, "stopped", reason)
        ledger.events.append(record.name, MERGED, {**facts, "run": run, "weights_digest": digest})
    return MergedRun(run=run, soup=soup, preference=preference, alpha=alpha, weights_digest=digest, parents=parents)


def _bring(home: Home, ledger: Ledger, row: CheckpointRow) -> None:
    """Fetches a checkpoint if its folder lacks it, and verifies it."""
    folder = home.run_folder(row.run)
    store = store_of(ledger, row.run, folder)
    fetch_lacking(store, folder, [row])
    verify_kept(store, folder, row)


def _parent(ledger: Ledger, each: _Ingredient) -> dict[str, Any]:
    """Returns what is recorded of a model, with the head of its run's chain, which binds the two."""
    row = each.row
    facts = {name: getattr(row, name) for name in ("run", "branch", "iteration", "term", "weights_digest")}
    return {**facts, "coefficient": each.coefficient, "audit_head": ledger.events.head(row.run).hash}


def _spec_of(record: SoupRecord, preference: Preference) -> RunSpec:
    """Returns the spec of a merged model's run: that of the supervised run, with the preference as its reward."""
    changes = record.spec.mixed_weights(record.run_spec, preference)
    return override_spec(record.run_spec, changes, f"the spec of soup {record.name}")


def _make_folder(home: Home, ledger: Ledger, fence: Fence, spec: RunSpec, soup: str) -> None:
    """Gives the run its folder, with the supervised run's inputs and reward files."""
    folder = home.run_folder(fence.run)
    source = home.run_folder(soup)
    durable.make_folder(folder)
    write_spec(folder, spec)
    if spec.tracking.enabled:
        ledger.outbox.enqueue(fence, first_entries(fence.run, spec))
    store = claim_store(ledger, fence.run, spec, folder)
    settle_code(spec, folder, store, source)
    fetch_inputs(source, store_of(ledger, soup, source))
    copy_folder(source / INPUTS, folder / INPUTS)
    store.publish(INPUTS)
    inputs = ChoiceRow(0, 0, INPUTS, {"manifest_sha256": file_sha256(folder / INPUTS / MANIFEST)})
    ledger.records.choice(fence, inputs)


def _publish(
    home: Home, ledger: Ledger, fence: Fence, spec: RunSpec, start: CheckpointRow, weights: MergedWeights
) -> str:
    """Writes the checkpoint, commits iteration 0, and records the checkpoint; returns the digest of the weights."""
    folder = home.run_folder(fence.run)
    source = home.run_folder(start.run) / start.folder
    name = str(checkpoint_folder(0, 0, fence.term))
    digest = digest_of(weights)
    head = ledger.events.head(fence.run).hash
    identity = CheckpointIdentity(
        run=fence.run,
        branch=0,
        iteration=0,
        term=fence.term,
        spec_digest=spec.digest,
        weights_digest=digest,
        audit_head=head,
    )

    def write(partial: Path) -> Mapping[str, FileEntry]:
        _link_others(source, partial)
        (partial / WEIGHTS).mkdir()
        written = write_whole_tensors(weights, partial / WEIGHTS)
        return {f"{WEIGHTS}/{file}": entry for file, entry in written.entries.items()}

    receipt = publish_checkpoint(
        run_folder=folder, folder=name, identity=identity, write=write, needed_bytes=2 * sum(sizes_of(weights).values())
    )
    store_of(ledger, fence.run, folder).publish(name)
    begun = ledger.commits.at(start.run, 0)
    if begun is None:
        raise ConfigurationError(f"run {start.run}: iteration 0 is not committed")
    state = replace(ControlState.from_json(begun.state), best=None, fingerprint={"weights_digest": digest})
    now = SystemClock().time_ms()
    commit = IterationCommit(0, 0, state.to_json(), now, weights_digest=digest, fingerprint=dict(state.fingerprint))
    ledger.commits.commit(fence, commit)
    row = CheckpointRow(fence.run, **asdict(receipt))
    ledger.records.checkpoint(fence, row, published_entries(spec, row))
    return digest


def _link_others(source: Path, target: Path) -> None:
    """Links everything of a checkpoint but its weights and manifest.

    A checkpoint with low-rank adapters gives nothing: they belong to its own weights, and the optimizer to them.
    """
    if any(source.glob(f"{ADAPTERS}*")):
        return
    for path in sorted(source.rglob("*")):
        place = path.relative_to(source)
        if path.is_dir() or place.parts[0].partition(".")[0] == WEIGHTS or place.name == MANIFEST:
            continue
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        link_file(path, target / place)
