"""A control store in a folder, for actors and drivers in processes that are not connected to Ray."""

from __future__ import annotations

from pathlib import Path

from yatt_core.durable import temporary_name
from yatt_core.errors import InfrastructureError


class FolderStore:
    """Keeps each value in a file; does not answer while `away` exists."""

    def __init__(self, folder: Path) -> None:
        self._values = folder / "control-store"
        self.away = folder / "control-store-is-away"
        self._values.mkdir(exist_ok=True)

    def put(self, key: str, value: str) -> None:
        self._require()
        temporary = temporary_name(self._values / key)
        temporary.write_text(value)
        temporary.rename(self._values / key)

    def get(self, key: str) -> str | None:
        self._require()
        file = self._values / key
        return file.read_text() if file.exists() else None

    def keys(self, prefix: str) -> list[str]:
        self._require()
        return sorted(file.name for file in self._values.glob(f"{prefix}*"))

    def delete(self, prefix: str) -> None:
        self._require()
        for file in self._values.glob(f"{prefix}*"):
            file.unlink(missing_ok=True)

    def _require(self) -> None:
        if self.away.exists():
            raise InfrastructureError("the store is away")
