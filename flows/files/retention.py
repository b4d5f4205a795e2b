"""Decides which of a run's files must be kept: checkpoints to go back to, and the experience to replay from them.

Consumes the ledger's lines, base points (where branches begin), checkpoints and commits. Produces the folders of the
checkpoints to keep, and deletes experience that is no longer needed. Rows and digests are always kept.

    current line   its latest `keep` checkpoints and its first; all experience after the oldest of the latest `keep`; with a lag
                   or slices, also the checkpoints before it down to one from which the oldest weights that its samples may have
                   been drawn under can be computed again
    base points    for each, the latest checkpoint at or before it, and the experience between the two; with slices, also what
                   earlier iterations have sealed of it
    aliases        the checkpoints to which they point
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from db.core.ancestry import OPEN_END, IterationRange, own_places
from db.core.engine import Fence
from db.ledger import Ledger
from db.write.aliases import CheckpointKey
from db.write.records import CheckpointRow
from yatt_core.actors.leftovers import Leftovers, remove_experience
from yatt_core.checkpoints.retention import checkpoints_to_keep
from yatt_core.keys import iteration_folder
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import NoStore, RunStore

log = logging.getLogger("yatt_core.flow")
EXPERIENCE = str(iteration_folder(0, 0).parent.parent)
PRUNED_EVENT = "experience_pruned"


@dataclass(frozen=True, slots=True)
class NeededFiles:
    """The files of a run that must be kept.

    checkpoints: folders of checkpoints.
    experience: ranges of iterations whose experience may have to be replayed.
    """

    checkpoints: frozenset[str]
    experience: tuple[IterationRange, ...]

    def replays(self, run: str, branch: int, iteration: int) -> bool:
        """Returns True if the iteration may have to be replayed."""
        return any((s.run, s.branch) == (run, branch) and s.first <= iteration <= s.last for s in self.experience)


def needed_files(
    own: Iterable[CheckpointRow],
    current: Sequence[IterationRange],
    committed: int,
    base_lines: Iterable[Sequence[IterationRange]],
    keep: int,
    aliased: Collection[CheckpointKey],
    span: int = 0,
    carried: int = 0,
) -> NeededFiles:
    """Returns the files to keep.

    A checkpoint of an iteration that is not committed yet is kept, but does not count towards `keep`, since the commit
    may never follow.

    own: the run's kept checkpoints.
    current: the current line.
    committed: the last committed iteration of the current line.
    base_lines: the line of each base point, ending at it.
    keep: number of the latest checkpoints to keep on the current line.
    aliased: the targets of aliases, on any branch.
    span: a damaged shard of an iteration after a checkpoint may need weights that are older by so many versions.
    carried: an update may learn from what was sealed so many iterations earlier.
    """
    rows = list(own)
    folders = {row.folder for row in rows if row.iteration > committed and _holds(current, row)}
    on_line = [row for row in rows if row.iteration <= committed and _holds(current, row)]
    folders |= {row.folder for row in rows if CheckpointKey(row.branch, row.iteration, row.term) in aliased}
    kept = checkpoints_to_keep((row.iteration for row in on_line), keep)
    folders |= {row.folder for row in on_line if row.iteration in kept}
    newest = sorted({row.iteration for row in on_line}, reverse=True)[:keep]
    oldest = newest[-1] if len(newest) == keep else 0
    if span:
        # All since then are kept, not only that one: the next that is old enough is among them.
        oldest = max((row.iteration for row in on_line if row.iteration <= oldest - span), default=0)
        folders |= {row.folder for row in on_line if row.iteration >= oldest}
    experience = _after(current, max(0, oldest - carried), OPEN_END)
    for line in base_lines:
        before = [row for row in rows if _holds(line, row)]
        last = max((row.iteration for row in before), default=0)
        folders |= {row.folder for row in before if row.iteration == last}
        experience += _after(line, max(0, last - carried), line[-1].last)
    return NeededFiles(frozenset(folders), tuple(experience))


def needed_checkpoints(ledger: Ledger, run: str, keep: int, span: int = 0) -> frozenset[str]:
    """Returns the folders of the run's own checkpoints that must be kept. keep, span: as in `needed_files`."""
    return _needed(ledger, run, keep, span).checkpoints


def prune_experience(
    ledger: Ledger,
    fence: Fence,
    run_folder: Path,
    spec: RunSpec,
    store: RunStore | None = None,
    elsewhere: Callable[[Leftovers], None] = lambda _: None,
) -> list[int]:
    """Deletes shards and prepared columns that no kept checkpoint needs for replay; returns their iterations.

    Does so on all branches of the run, but only if `retention.experience` is `needed`. The audit chain records the
    deletion first, so that a missing file can always be explained. Telemetry is kept.

    store: the durable tier, from which the files are deleted too.
    elsewhere: has the files deleted on other nodes' disks.

    Raises `Fenced`, `InfrastructureError`.
    """
    if spec.retention.experience != "needed":
        return []
    pruned = list[int]()
    told = list[tuple[int, int]]()
    store = store or NoStore()
    stored = _stored(store)
    for branch, gone in _unneeded(
        ledger=ledger, run=fence.run, run_folder=run_folder, spec=spec, stored=stored
    ).items():
        for first, last in consecutive(gone):
            ledger.events.append(
                fence.run, PRUNED_EVENT, {"branch": branch, "first": first, "last": last, "term": fence.term}, fence
            )
        for iteration in gone:
            remove_experience(run_folder / iteration_folder(branch, iteration))
            told.append((branch, iteration))
            for folder in stored.get((branch, iteration), ()):
                store.remove(folder)
        pruned += gone
    elsewhere(Leftovers(pruned=tuple(told)))
    if pruned:
        log.info("deleted the experience of %d iterations, which no checkpoint needs any longer", len(pruned))
    return pruned


def has_unneeded_experience(ledger: Ledger, run: str, run_folder: Path, spec: RunSpec) -> bool:
    """Returns True if `prune_experience` would delete something on this disk."""
    return any(_unneeded(ledger=ledger, run=run, run_folder=run_folder, spec=spec, stored={}).values())


def _unneeded(
    ledger: Ledger, run: str, run_folder: Path, spec: RunSpec, stored: Mapping[tuple[int, int], Sequence[str]]
) -> dict[int, list[int]]:
    """Returns the iterations, by branch, whose experience no kept checkpoint needs; none if all of it is to be kept."""
    if spec.retention.experience != "needed":
        return {}
    needed = _needed(
        ledger=ledger, run=run, keep=spec.checkpoints.keep, span=spec.version_span, carried=spec.carry_span
    )
    found = _on_disk(run_folder)
    for branch, iteration in stored:
        found.setdefault(branch, set()).add(iteration)
    row = ledger.runs.find(run)
    gone = {}
    for branch, iterations in sorted(found.items()):
        # The iteration in progress, the one after the last commit, needs its files.
        done = [i for i in sorted(iterations) if branch != row.current_branch or i <= row.iteration]
        gone[branch] = [i for i in done if not needed.replays(run, branch, i)]
    return gone


def _needed(ledger: Ledger, run: str, keep: int, span: int, carried: int = 0) -> NeededFiles:
    own = ledger.records.own_checkpoints(run, "kept")
    lines = [own_places(point.line, run) for point in ledger.lines.base_points(run)]
    current = own_places(ledger.lines.current(run), run)
    aliased = ledger.aliases.pointing(run).values()
    return needed_files(
        own=own,
        current=current,
        committed=ledger.runs.find(run).iteration,
        base_lines=lines,
        keep=keep,
        aliased=aliased,
        span=span,
        carried=carried,
    )


def _holds(line: Sequence[IterationRange], row: CheckpointRow) -> bool:
    return any((s.run, s.branch) == (row.run, row.branch) and s.first <= row.iteration <= s.last for s in line)


def _after(line: Sequence[IterationRange], iteration: int, last: int) -> list[IterationRange]:
    """Returns the part of a line after an iteration, up to and including `last`."""
    parts = [IterationRange(s.run, s.branch, max(s.first, iteration + 1), min(s.last, last)) for s in line]
    return [part for part in parts if part.first <= part.last]


def _on_disk(run_folder: Path) -> dict[int, set[int]]:
    """Returns the iterations, by branch, that still have folders of shards or prepared columns."""
    found = {}
    for branch in (run_folder / EXPERIENCE).glob("b[0-9]*"):
        found[int(branch.name[1:])] = {int(path.name[1:]) for path in branch.glob("i[0-9]*") if _parts(path)}
    return found


def _stored(store: RunStore) -> dict[tuple[int, int], list[str]]:
    """Returns the folders of shards on the durable tier, by branch and iteration."""
    found: dict[tuple[int, int], list[str]] = {}
    for folder in store.folders(EXPERIENCE, depth=3):
        _, branch, iteration, _ = PurePosixPath(folder).parts
        found.setdefault((int(branch[1:]), int(iteration[1:])), []).append(folder)
    return found


def _parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.exists() else []


def consecutive(iterations: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and last number of each range of consecutive numbers."""
    if not iterations:
        return []
    breaks = [(a, b) for a, b in pairwise(iterations) if b != a + 1]
    return list(zip([iterations[0], *(b for _, b in breaks)], [*(a for a, _ in breaks), iterations[-1]], strict=True))
