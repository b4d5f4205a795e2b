"""How a run's files travel between nodes: what the nodes must share, and what is lost with one of them."""

from __future__ import annotations

from dataclasses import dataclass

LOST_WITH_A_NODE = ("samples of shards that are not sealed", "prepared columns", "logs not yet copied")
"""What only a node with a disk of its own has. All of it but the logs is computed again, with the same digests."""


@dataclass(frozen=True, slots=True)
class FilesOnNodes:
    """What a number of nodes needs to exchange a run's files.

    nodes: number of nodes.
    storage_url: the object store; None if the run has none.
    """

    nodes: int
    storage_url: str | None

    @property
    def shared_home_required(self) -> bool:
        """True if all nodes must share the home folder: a start refuses those that do not."""
        return self.nodes > 1 and self.storage_url is None

    @property
    def lost_with_a_node(self) -> tuple[str, ...]:
        """What is lost with a node that has a disk of its own; empty if no node may have one."""
        return LOST_WITH_A_NODE if self.nodes > 1 and self.storage_url is not None else ()

    def described(self) -> str:
        """Returns a sentence about the nodes; empty for a single one."""
        if self.nodes == 1:
            return ""
        if self.storage_url is None:
            return (
                f"all {self.nodes} nodes must share YATT_HOME, because storage.url is not set; a node that does not is "
                "refused at the start"
            )
        return (
            f"the {self.nodes} nodes need not share YATT_HOME: files travel through {self.storage_url}; with a node that has "
            f"a disk of its own are lost: {', '.join(LOST_WITH_A_NODE)}"
        )
