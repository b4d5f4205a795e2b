"""Deletes old backups of a folder, and the objects that no other backup needs.

Waits until no backup is being made or read there. A kill in between leaves objects that no backup needs, which the next
call deletes.
"""

from __future__ import annotations

from dataclasses import dataclass

from flows.backup.folder import BackupFolder


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted.

    freed: bytes.
    """

    deleted: tuple[str, ...]
    freed: int


def prune_backups(folder: BackupFolder, keep: int) -> Pruned:
    """Keeps the newest `keep` backups.

    Raises `ConfigurationError` if there is none, `DataError` if one of them was altered: what it needs is unknown.
    """
    folder.find(None)
    with folder.in_use(alone=True):
        known = folder.ids()
        kept = known[-keep:]
        gone = known[:-keep]
        objects = [each.sha256 for manifest in map(folder.read, kept) for each in manifest.objects]
        for name in gone:
            folder.remove(name)
        return Pruned(tuple(gone), folder.sweep(objects))
