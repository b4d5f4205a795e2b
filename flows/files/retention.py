"""What of a run's files must stay: checkpoints that can be gone back to, and the experience that replay from them needs.

Consumes the ledger's lines, base points (where its branches begin), checkpoints and commits. Produces the folders of the
checkpoints that stay, and the deletion of the experience that nobody can need. Rows and digests stay in any case.

    current line   its newest `keep` checkpoints and the first; all experience behind the oldest of the newest
    base points    the newest checkpoint at or before each, and the experience between the two
    aliases        the checkpoints that they point to
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from db.core.ancestry import OPEN_END, IterationRange, own_places
from db.core.engine import Fence
from db.ledger import Ledger
from db.write.aliases import CheckpointKey
from db.write.records import CheckpointRow
from yatt_core import durable
from yatt_core.checkpoints.retention import checkpoints_to_keep
from yatt_core.keys import iteration_folder
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import NoStore, RunStore

log = logging.getLogger("yatt_core.flow")
EXPERIENCE = str(iteration_folder(0, 0).parent.parent)
PRUNED_EVENT = "experience_pruned"


@dataclass(frozen=True, slots=True)
class Needed:
    """What of one run must stay: folders of checkpoints, and ranges of iterations whose experience may be replayed."""

    checkpoints: frozenset[str]
    experience: tuple[IterationRange, ...]

    def replays(self, run: str, branch: int, iteration: int) -> bool:
        """Whether somebody may have to replay an iteration."""
        return any((s.run, s.branch) == (run, branch) and s.first <= iteration <= s.last for s in self.experience)


def needed_files(
    own: Iterable[CheckpointRow],
    current: Sequence[IterationRange],
    committed: int,
    base_lines: Iterable[Sequence[IterationRange]],
    keep: int,
    aliased: Collection[CheckpointKey],
) -> Needed:
    """The choice itself. own: the run's kept checkpoints. current: the current line, committed up to that iteration.

    base_lines: the line of each base point, ending at it. aliased: what an alias points to, on whatever branch. A checkpoint
    behind the last commit stays and counts for nothing: if the commit never comes, it is of no use.
    """
    rows = list(own)
    folders = {row.folder for row in rows if row.iteration > committed and _holds(current, row)}
    on_line = [row for row in rows if row.iteration <= committed and _holds(current, row)]
    folders |= {row.folder for row in rows if CheckpointKey(row.branch, row.iteration, row.term) in aliased}
    kept = checkpoints_to_keep((row.iteration for row in on_line), keep)
    folders |= {row.folder for row in on_line if row.iteration in kept}
    newest = sorted({row.iteration for row in on_line}, reverse=True)[:keep]
    experience = _behind(current, newest[-1] if len(newest) == keep else 0, OPEN_END)
    for line in base_lines:
        before = [row for row in rows if _holds(line, row)]
        last = max((row.iteration for row in before), default=0)
        folders |= {row.folder for row in before if row.iteration == last}
        experience += _behind(line, last, line[-1].last)
    return Needed(frozenset(folders), tuple(experience))


def needed_checkpoints(ledger: Ledger, run: str, keep: int) -> frozenset[str]:
    """Folders of the run's own checkpoints that stay."""
    return _needed(ledger, run, keep).checkpoints


def prune_experience(
    ledger: Ledger, fence: Fence, run_folder: Path, spec: RunSpec, store: RunStore | None = None
) -> list[int]:
    """Deletes shards and prepared columns that no reachable checkpoint needs; returns the iterations, over all branches.

    Does nothing unless `retention.experience` is `needed`. The audit chain tells first what goes, so that a missing file is
    never a riddle; telemetry stays. store: the durable tier, where they go too. Raises `Fenced`, `InfrastructureError`.
    """
    if spec.retention.experience != "needed":
        return []
    needed = _needed(ledger, fence.run, spec.checkpoints.keep)
    pruned, store = list[int](), store or NoStore()
    stored = _stored(store)
    found = _on_disk(run_folder)
    for branch, iteration in stored:
        found.setdefault(branch, set()).add(iteration)
    run = ledger.runs.find(fence.run)
    for branch, iterations in sorted(found.items()):
        # Behind the last commit somebody is at work.
        done = [i for i in sorted(iterations) if branch != run.current_branch or i <= run.iteration]
        gone = [i for i in done if not needed.replays(fence.run, branch, i)]
        for first, last in consecutive(gone):
            ledger.events.append(
                fence.run, PRUNED_EVENT, {"branch": branch, "first": first, "last": last, "term": fence.term}, fence
            )
        for iteration in gone:
            _delete(run_folder / iteration_folder(branch, iteration))
            for folder in stored.get((branch, iteration), ()):
                store.remove(folder)
        pruned += gone
    if pruned:
        log.info("experience of %d iterations is deleted, no checkpoint needs it any more", len(pruned))
    return pruned


def _needed(ledger: Ledger, run: str, keep: int) -> Needed:
    own = ledger.records.own_checkpoints(run, "kept")
    lines = [own_places(point.line, run) for point in ledger.lines.base_points(run)]
    current = own_places(ledger.lines.current(run), run)
    aliased = ledger.aliases.pointing(run).values()
    return needed_files(own, current, ledger.runs.find(run).iteration, lines, keep, aliased)


def _holds(line: Sequence[IterationRange], row: CheckpointRow) -> bool:
    return any((s.run, s.branch) == (row.run, row.branch) and s.first <= row.iteration <= s.last for s in line)


def _behind(line: Sequence[IterationRange], iteration: int, last: int) -> list[IterationRange]:
    """The part of a line that lies behind an iteration, up to another."""
    parts = [IterationRange(s.run, s.branch, max(s.first, iteration + 1), min(s.last, last)) for s in line]
    return [part for part in parts if part.first <= part.last]


def _on_disk(run_folder: Path) -> dict[int, set[int]]:
    """Branches, and iterations of each, that still have folders of shards or prepared columns."""
    found = {}
    for branch in (run_folder / EXPERIENCE).glob("b[0-9]*"):
        found[int(branch.name[1:])] = {int(path.name[1:]) for path in branch.glob("i[0-9]*") if _parts(path)}
    return found


def _stored(store: RunStore) -> dict[tuple[int, int], list[str]]:
    """Folders of shards on the durable tier, by branch and iteration."""
    found: dict[tuple[int, int], list[str]] = {}
    for folder in store.folders(EXPERIENCE, depth=3):
        _, branch, iteration, _ = PurePosixPath(folder).parts
        found.setdefault((int(branch[1:]), int(iteration[1:])), []).append(folder)
    return found


def _parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.exists() else []


def _delete(folder: Path) -> None:
    for part in _parts(folder):
        if part.name.startswith("."):
            shutil.rmtree(part)
        else:
            durable.remove_folder(part)


def consecutive(iterations: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    if not iterations:
        return []
    breaks = [(a, b) for a, b in pairwise(iterations) if b != a + 1]
    return list(zip([iterations[0], *(b for _, b in breaks)], [*(a for a, _ in breaks), iterations[-1]], strict=True))
