"""The Ray heads and Prefect servers of a command that drives several runs: one for each place at which it does.

Consumes a home and the GPUs of a place; produces clusters, which runs that are driven one after another in the same place share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from flows.driver.attachment import attached
from flows.run.home import Home

if TYPE_CHECKING:
    from flows.run.shared_cluster import SharedCluster


class Clusters:
    """The clusters of a command, one for each place at which it drives runs; a context manager that ends them.

    A head sees the GPUs of the driver that started it, so named GPUs are a place of their own. There are none if the
    environment names a Ray cluster that exists already.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._by_place: dict[int | str, SharedCluster] = {}
        self._held = ExitStack()

    def __enter__(self) -> Clusters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whoever lends a cluster must know that drivers may have been left to themselves.
        self._held.__exit__(kind, error, trace)

    def at(self, place: int, gpus: str | None) -> SharedCluster | None:
        """Returns the cluster of a place, which is taken when it is first asked for; None if there are none.

        A place with all GPUs borrows a warm one of the service group if that has one.

        gpus: those that tell the place from others, whatever its number; None for all.
        """
        if attached():
            return None
        key = place if gpus is None else gpus
        if key not in self._by_place:
            self._by_place[key] = self._held.enter_context(_cluster_of(self._home, gpus))
        return self._by_place[key]


@contextmanager
def _cluster_of(home: Home, gpus: str | None) -> Iterator[SharedCluster]:
    """Provides a cluster for the drivers of one place."""
    from flows.run.lending import borrowed_for_command
    from flows.run.shared_cluster import taken_cluster

    with ExitStack() as stack:
        lent = None if gpus is not None else stack.enter_context(borrowed_for_command(home))
        yield stack.enter_context(taken_cluster(home)) if lent is None else lent
