"""Values that a run's driver and actors leave for each other in Ray's control store (GCS).

The keys lie in the run's Ray namespace, which every process of the run has in common. The store is one server, so a
read returns what was written last: nothing is cached on a node, and no file system is involved.
"""

from __future__ import annotations

from typing import Any, Protocol

from yatt_core.cluster.gcs import ANSWER_SECONDS, asked, gcs_client, own_namespace


class ControlStore(Protocol):
    """A small store of texts by key. Every method raises `InfrastructureError` if the store does not answer."""

    def put(self, key: str, value: str) -> None:
        """Writes a value, or replaces it."""
        ...

    def get(self, key: str) -> str | None:
        """Returns a value; None if there is none."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Returns the keys that begin with a prefix, sorted."""
        ...

    def delete(self, prefix: str) -> None:
        """Deletes all keys that begin with a prefix."""
        ...


class RayControlStore:
    """The store of the cluster to which this process is connected when a method is called.

    seconds: maximum wait for an answer.
    """

    def __init__(self, seconds: float = ANSWER_SECONDS) -> None:
        self._seconds = seconds

    def put(self, key: str, value: str) -> None:
        """Writes a value, or replaces it."""
        self._ask("internal_kv_put", key.encode(), value.encode(), True)

    def get(self, key: str) -> str | None:
        """Returns a value; None if there is none."""
        found: bytes | None = self._ask("internal_kv_get", key.encode())
        return None if found is None else found.decode()

    def keys(self, prefix: str) -> list[str]:
        """Returns the keys that begin with a prefix, sorted."""
        return sorted(key.decode() for key in self._ask("internal_kv_keys", prefix.encode()))

    def delete(self, prefix: str) -> None:
        """Deletes all keys that begin with a prefix."""
        self._ask("internal_kv_del", prefix.encode(), True)

    def _ask(self, method: str, *arguments: Any) -> Any:
        client = gcs_client()
        namespace = own_namespace().encode()
        return asked(lambda: getattr(client, method)(*arguments, namespace, self._seconds))
