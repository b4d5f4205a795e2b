"""A deletion as a scenario for a child process that is killed, and the tracker that it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flows.run.deletion import delete_run
from flows.run.home import Home
from flows.run.protocols import OutboxItem
from yatt_core.errors import InfrastructureError


class Told:
    """A tracker that notes what it is told, in a file; unreachable if `away`."""

    def __init__(self, file: Path, away: bool = False) -> None:
        self._file = file
        self._away = away

    def close(self) -> None:
        """Does nothing."""

    def deliver(self, items: list[OutboxItem]) -> Mapping[str, str]:
        if self._away:
            raise InfrastructureError("MLflow at nowhere: no answer")
        with self._file.open("a") as stream:
            stream.writelines(f"{item.kind} {item.body['experiments']}\n" for item in items)
        return {}


def delete_first(folder: Path, tell: Callable[[str], None]) -> None:
    """Deletes run toy-1 of the home at `folder`."""
    done = delete_run(Home(folder), "toy-1", "ann", "mistyped", Told(folder.parent / "told"))
    assert done.left == ()
    tell("deleted")
