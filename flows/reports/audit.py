"""Audits a run: recomputes every digest, link and count, and reports the first that disagrees with the ledger.

Consumes the ledger, the run's folder and, if metrics are tracked, a reader of the tracker. Produces a report: how
many items of each kind were checked, and the first disagreement with its place, the expected and the actual value.
Changes nothing, but fetches files that the run's folder lacks from the durable tier, whose objects are checked as
well. A driver may be at work on the run meanwhile. Links of the chain are therefore read twice: each link read before
the rows must have a row, and each row must have a link among those read after the rows.

    events        every link of the audit chain
    spec          the digest of every revision, against the chain
    inputs        every file that the run started from, including images
    commits       iterations and control states, against the chain
    experience    group digests of every shard, from its file; from its row if the file was pruned. Of a workload of one's own:
                  the files of the columns that each iteration learnt from, and of its samples' images, unless pruned
    checkpoints   every file of the kept checkpoints; the audit head in the manifest, against the chain
    aliases       every alias move, against the chain
    metrics       every delivered point, which the tracker must have exactly once; pending points are only counted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from db.ledger import Ledger
from db.read.audit import ToldIteration
from db.write.aliases import PROMOTION
from db.write.commit import CommitRow, state_digest
from db.write.events import COLUMNS_REGENERATED, EventRow
from db.write.records import ShardRow
from flows.delivery.outbox import tracking_run
from flows.files.retention import PRUNED_EVENT
from flows.files.storage import store_of
from flows.run.protocols import MetricsReader, TrackedPoint
from yatt_core.checkpoints.verify import verify_checkpoint
from yatt_core.digests import experience_digest_of_iteration, file_sha256, json_digest
from yatt_core.errors import DataError
from yatt_core.experience.batch import SAMPLES_FILE, load_table
from yatt_core.experience.carried import carried_digests, load_carried
from yatt_core.experience.prepared import read_prepared_files
from yatt_core.experience.table import group_digests
from yatt_core.input_building.settling import fetch_inputs
from yatt_core.inputs.manifest import INPUTS, read_manifest
from yatt_core.manifests import MANIFEST
from yatt_core.prompts.media import MEDIA, describe_media, media_path, stored_addresses
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spec import parse_spec
from yatt_core.storage.lacking import fetch_lacking
from yatt_core.storage.run_store import NoStore, RunStore
from yatt_core.workloads.columns import COLUMNS_DIGEST, columns_digest
from yatt_core.workloads.images import ImageFolder

Progress = Callable[[str, int, int], None]
"""Called with the name of the check, the number of items done, and the total."""
DIGESTS = ("term", "experience_digest", "weights_digest")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first disagreement.

    place: the file, or the row of the ledger or the tracker.
    """

    check: str
    place: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class CommitPlace:
    """An iteration of one of the run's branches."""

    branch: int
    iteration: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit.

    checked: number of items that agree, by check.
    pending: iterations whose metrics are not delivered yet.
    elsewhere: iterations of a workload whose columns are not on this machine, so that only their digests were checked. This is a
        disagreement instead if the run has no durable tier, since its folder is then shared by all machines.
    """

    run: str
    checked: Mapping[str, int]
    pending: tuple[CommitPlace, ...]
    disagreement: Disagreement | None
    elsewhere: tuple[CommitPlace, ...] = ()

    @property
    def sound(self) -> bool:
        """True if everything agrees."""
        return self.disagreement is None


class _Disagrees(Exception):
    """Ends an audit at its first finding."""

    def __init__(self, place: str, expected: object, found: object) -> None:
        super().__init__(place)
        self.place = place
        self.expected = str(expected)
        self.found = str(found)


@dataclass
class _Audit:
    """The state that the checks share."""

    ledger: Ledger
    run: str
    folder: Path
    reader: MetricsReader | None
    store: RunStore
    links: list[EventRow] = field(default_factory=list)
    commits: list[CommitRow] = field(default_factory=list)
    pending: list[CommitPlace] = field(default_factory=list)
    elsewhere: list[CommitPlace] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[EventRow]:
        """Returns the chain's links of one kind, as of the start of the audit."""
        return [link for link in self.links if link.kind == kind]

    def newest_of_kind(self, kind: str) -> list[EventRow]:
        """Returns the chain's links of one kind, as of now."""
        return self.ledger.events.of_kind(self.run, kind)


@dataclass(frozen=True, slots=True)
class _SealedColumns:
    """What an iteration of a workload of one's own learnt from, as the ledger names it.

    folder: relative to the run's folder.
    files: the SHA-256 of each file by name.
    images: the SHA-256 of the manifest of the samples' images; empty without images.
    """

    folder: str
    files: Mapping[str, str]
    images: str


def verify_run(
    ledger: Ledger,
    run: str,
    folder: Path,
    reader: MetricsReader | None,
    progress: Progress = lambda *_: None,
) -> AuditReport:
    """Audits a run, by its id.

    folder: the run's folder.
    reader: None if the run is not tracked.
    progress: called after each item.

    Raises `RunNotFound`, and `InfrastructureError` if the tracker cannot be reached.
    """
    audit = _Audit(ledger=ledger, run=run, folder=folder, reader=reader, store=store_of(ledger, run, folder))
    checked: dict[str, int] = {}
    finding = None
    for name, check in CHECKS.items():
        things = check(audit)
        checked[name] = 0
        try:
            for total in things:
                checked[name] += 1
                progress(name, checked[name], total)
        except _Disagrees as error:
            finding = Disagreement(name, error.place, error.expected, error.found)
        except DataError as error:
            finding = Disagreement(name, str(error).partition(": ")[0], "content that matches its digest", str(error))
        if finding is not None:
            break
    return AuditReport(
        run=run,
        checked=checked,
        pending=tuple(audit.pending),
        disagreement=finding,
        elsewhere=tuple(audit.elsewhere),
    )


def _agree(place: str, expected: object, found: object) -> None:
    if expected != found:
        raise _Disagrees(place, expected, found)


def _events(audit: _Audit) -> Iterator[int]:
    broken = audit.ledger.events.verify(audit.run)
    if broken is not None:
        place = f"row (run {audit.run}, seq {broken}) of table event"
        raise _Disagrees(place, "a link whose hash covers it and the previous link", "missing, changed or added")
    audit.links = audit.ledger.events.links(audit.run)
    for _ in audit.links:
        yield len(audit.links)


def _spec(audit: _Audit) -> Iterator[int]:
    recorded = {link.body["revision"]: link.body["digest"] for link in audit.of_kind("spec_revision")}
    newest = audit.ledger.runs.revision(audit.run).revision
    for number in range(1, newest + 1):
        revision = audit.ledger.runs.revision(audit.run, number)
        place = f"row (run {audit.run}, revision {number}) of table spec_revision"
        _agree(place, recorded.get(number), revision.digest)
        _agree(place, revision.digest, json_digest(revision.spec))
        yield newest
    _agree(f"rows (run {audit.run}) of table spec_revision", sorted(recorded), list(range(1, newest + 1)))


def _inputs(audit: _Audit) -> Iterator[int]:
    folder = audit.folder / INPUTS
    began_with = audit.ledger.records.choices(audit.run, 0, 0).get(INPUTS)
    if began_with is None:
        return  # the run was never started
    fetch_inputs(audit.folder, audit.store)
    _agree(str(folder / MANIFEST), began_with.body["manifest_sha256"], _sha256(folder / MANIFEST))
    spec = parse_spec(audit.ledger.runs.revision(audit.run, 1).spec, f"the first spec of run {audit.run}")
    manifest = read_manifest(folder, spec)
    files: Mapping[str, str] = manifest["files"]
    recorded = manifest.get(MEDIA)
    things = len(files) + (recorded["images"] if recorded else 0)
    for name, sha256 in sorted(files.items()):
        _agree(str(folder / name), sha256, _sha256(folder / name))
        yield things
    audit.store.verify(INPUTS, began_with.body["manifest_sha256"])
    if recorded is None:
        return
    _agree(str(folder / MEDIA), recorded, describe_media(folder))
    for address in stored_addresses(folder):
        path = media_path(folder, address)
        _agree(str(path), address, _sha256(path))
        yield things


def _commits(audit: _Audit) -> Iterator[int]:
    before = {(link.body["branch"], link.body["iteration"]) for link in audit.of_kind("commit")}
    rows = {(row.branch, row.iteration): row for row in audit.ledger.audit.commits(audit.run)}
    links = {(link.body["branch"], link.body["iteration"]): link.body for link in audit.newest_of_kind("commit")}
    for branch, iteration in sorted(rows.keys() | before):
        place = f"row (run {audit.run}, branch {branch}, iteration {iteration}) of table"
        row = rows.get((branch, iteration))
        link = links.get((branch, iteration))
        if row is None or link is None:
            raise _Disagrees(f"{place} iteration", _standing(link, "a row"), _standing(row, "a row"))
        for name in DIGESTS:
            _agree(f"{place} iteration, column {name}", link[name], getattr(row, name))
        _agree(f"{place} control_state", link.get("state_digest"), state_digest(row.state, row.fingerprint))
        audit.commits.append(row)
        yield len(rows)


def _experience(audit: _Audit) -> Iterator[int]:
    spec = parse_spec(audit.ledger.runs.revision(audit.run).spec, f"the spec of run {audit.run}")
    if spec.has.learns_from == "columns":
        yield from _columns(audit)
        return
    commits = [commit for commit in audit.commits if commit.experience_digest is not None]
    for commit in commits:
        shards = audit.ledger.records.shards(audit.run, commit.branch, commit.iteration)
        place = f"rows (run {audit.run}, branch {commit.branch}, iteration {commit.iteration}) of table shard"
        digest = experience_digest_of_iteration(b"".join(row.group_digests for row in shards))
        _agree(place, commit.experience_digest, digest)
        if not _is_pruned(audit, commit):
            for row in shards:
                _shard_file(audit, row)
        yield len(commits)


def _is_pruned(audit: _Audit, commit: CommitRow) -> bool:
    pruned = [(e.body["branch"], e.body["first"], e.body["last"]) for e in audit.of_kind(PRUNED_EVENT)]
    return any(b == commit.branch and first <= commit.iteration <= last for b, first, last in pruned)


def _shard_file(audit: _Audit, row: ShardRow) -> None:
    fetch_lacking(audit.store, audit.folder, [row])
    shard = ShardRef(row.folder, row.manifest_sha256)
    found = group_digests(load_table(audit.folder, [shard])) + carried_digests(load_carried(audit.folder, shard))
    _agree(str(audit.folder / row.folder / SAMPLES_FILE), row.group_digests.hex(), found.hex())
    audit.store.verify(row.folder, row.manifest_sha256)


def _columns(audit: _Audit) -> Iterator[int]:
    """Checks what the iterations of a workload of one's own have learnt from.

    The fingerprint, which the chain covers, has the digest of all columns; the receipt of `prepare`, or the link of columns that
    were made again, names each file.
    """
    commits = [commit for commit in audit.commits if commit.iteration > 0]
    regenerated = _regenerated_since(audit)
    for commit in commits:
        place = f"(run {audit.run}, branch {commit.branch}, iteration {commit.iteration})"
        sealed = _sealed_columns(audit, commit, regenerated.get((commit.branch, commit.iteration), ()))
        if (learnt := commit.fingerprint.get(COLUMNS_DIGEST)) is not None:
            if commit.experience_digest is not None:  # earlier versions recorded none
                _agree(f"row {place} of table iteration, column experience_digest", learnt, commit.experience_digest)
            found = "none" if sealed is None else columns_digest(sealed.files)
            _agree(f"receipt of prepare {place} in table phase_attempt", learnt, found)
        if sealed is not None and not _is_pruned(audit, commit):
            _columns_files(audit, commit, sealed)
        yield len(commits)


def _regenerated_since(audit: _Audit) -> dict[tuple[int, int], list[EventRow]]:
    """Returns the links of columns that were made again after their iteration's commit, by branch and iteration.

    Of those made again before, the commit has used the ones that the receipt of `prepare` names.
    """
    committed = {(link.body["branch"], link.body["iteration"]): link.seq for link in audit.newest_of_kind("commit")}
    found: dict[tuple[int, int], list[EventRow]] = {}
    for link in audit.newest_of_kind(COLUMNS_REGENERATED):
        place = (link.body["branch"], link.body["iteration"])
        if place in committed and link.seq > committed[place]:
            found.setdefault(place, []).append(link)
    return found


def _sealed_columns(audit: _Audit, commit: CommitRow, regenerated: Sequence[EventRow]) -> _SealedColumns | None:
    """Returns the newest columns of an iteration; None if none are recorded."""
    done = audit.ledger.phases.done(audit.run, commit.branch, commit.iteration, "prepare")
    recorded = [] if done is None or not done.receipt else [done.receipt]
    recorded += [link.body["made"] for link in regenerated]
    if not recorded:
        return None
    newest = recorded[-1]
    return _SealedColumns(newest["folder"], dict(newest["files"]), newest.get("images", ""))


def _columns_files(audit: _Audit, commit: CommitRow, sealed: _SealedColumns) -> None:
    folder = audit.folder / sealed.folder
    if not folder.exists() and not isinstance(audit.store, NoStore):
        audit.elsewhere.append(CommitPlace(commit.branch, commit.iteration))
        return
    for name in sorted(sealed.files):
        read_prepared_files(audit.folder, sealed.folder, sealed.files, [name])
    if sealed.images:
        opened = ImageFolder.open(folder, sealed.images)
        for address in dict.fromkeys(image.address for image in opened.images):
            opened.read(address)


def _checkpoints(audit: _Audit) -> Iterator[int]:
    rows = audit.ledger.records.own_checkpoints(audit.run, "kept")
    heads = {link.hash for link in audit.ledger.events.links(audit.run)}
    for row in rows:
        try:
            fetch_lacking(audit.store, audit.folder, [row])
            audit.store.verify(row.folder, row.manifest_sha256)
            fields = verify_checkpoint(audit.folder, row.folder, row.manifest_sha256).fields
        except DataError:
            if audit.ledger.records.is_kept(row):
                raise
            continue  # it was pruned meanwhile
        place = f"row (run {audit.run}, branch {row.branch}, iteration {row.iteration}, term {row.term}) of table checkpoint"
        _agree(place, fields["weights_digest"], row.weights_digest)
        head = fields["audit_head"]
        if (
            fields["run"] == audit.run and head and head not in heads
        ):  # a fork's copies name a link of its parent's chain
            raise _Disagrees(str(audit.folder / row.folder / MANIFEST), "an audit head from the chain", head)
        yield len(rows)


def _aliases(audit: _Audit) -> Iterator[int]:
    before = {move["number"] for link in audit.of_kind(PROMOTION) for move in link.body["moves"]}
    moves = {move.number: move for move in audit.ledger.aliases.history(audit.run)}
    recorded = {
        move["number"]: {**move, "by": link.body["by"], "why": link.body["why"], "at": link.at, "seq": link.seq}
        for link in audit.newest_of_kind(PROMOTION)
        for move in link.body["moves"]
    }
    for number in sorted(moves.keys() | before):
        place = f"row (run {audit.run}, number {number}) of table alias_move"
        told = recorded.get(number)
        move = moves.get(number)
        if told is None or move is None:
            raise _Disagrees(place, _standing(told, "a row"), _standing(move, "a row"))
        _agree(place, told, {name: getattr(move, name) for name in told})
        yield len(moves)


def _metrics(audit: _Audit) -> Iterator[int]:
    told = audit.ledger.audit.told(audit.run)
    audit.pending = [CommitPlace(row.branch, row.iteration) for row in told if not row.delivered]
    if audit.reader is None:
        return
    runs: dict[str, list[ToldIteration]] = {}
    for row in told:
        if (name := tracking_run(audit.ledger, audit.run, row.branch)) is not None:
            runs.setdefault(name, []).append(row)
    keys = {name: sorted({key for row in rows for key in row.metrics}) for name, rows in runs.items()}
    for name, rows in runs.items():
        for key in keys[name]:
            place = f"metric {key!r} of tracking run {name}"
            points = audit.reader.points(name, key)
            try:
                _compare_points(place, key, rows, points)
            except _Disagrees:
                _compare_points(place, key, _told_meanwhile(audit, rows), points)
            yield sum(map(len, keys.values()))


def _told_meanwhile(audit: _Audit, before: Sequence[ToldIteration]) -> list[ToldIteration]:
    """Returns the rows that the tracker may have by now; it must have the rows delivered before it was read.

    before: rows of one branch, from before the tracker was read.
    """
    delivered = {row.iteration for row in before if row.delivered}
    branches = {row.branch for row in before}
    return [
        replace(row, delivered=row.iteration in delivered)
        for row in audit.ledger.audit.told(audit.run)
        if row.branch in branches
    ]


def _compare_points(place: str, key: str, rows: Sequence[ToldIteration], found: Sequence[TrackedPoint]) -> None:
    """Checks that the tracker has each delivered point once, each point sent but not marked as delivered at most once,
    and no others.
    """
    points = Counter(found)
    for row in rows:
        if key in row.metrics:
            point = TrackedPoint(row.iteration, row.at_ms, row.metrics[key])
            count = points.pop(point, 0)
            if count > 1 or (count == 0 and row.delivered) or (count and not row.sent):
                expected = f"{int(row.delivered)} time(s) step {point.step} at {point.at_ms}: {point.value}"
                others = [f"step {p.step} at {p.at_ms}: {p.value}" for p in found if p.step == point.step]
                raise _Disagrees(place, expected, f"{count} time(s); the points of this step are {others}")
    if points:
        point = min(points)
        raise _Disagrees(place, "only points from the outbox", f"step {point.step} at {point.at_ms}: {point.value}")


def _sha256(path: Path) -> str:
    return file_sha256(path) if path.is_file() else "no such file"


def _standing(thing: object, what: str) -> str:
    return "none" if thing is None else what


CHECKS: Mapping[str, Callable[[_Audit], Iterator[int]]] = {
    "events": _events,
    "spec": _spec,
    "inputs": _inputs,
    "commits": _commits,
    "experience": _experience,
    "checkpoints": _checkpoints,
    "aliases": _aliases,
    "metrics": _metrics,
}
