"""The devices that a plan is made for: model cards of accelerators, and a cluster, described or detected.

Consumes the cards that ship with YATT, an optional file with the user's own, and descriptions such as `8xH200`,
`8xH200,16 nodes` or `16x8xH100`. Produces a `DescribedCluster`. Raises `ConfigurationError`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from yatt_core.cluster.gpus import local_gpus
from yatt_core.cluster.seating import labels_of
from yatt_core.errors import ConfigurationError
from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import Mistake, mistakes_in

if TYPE_CHECKING:
    # Not at run time: it would import Ray, which a plan does not need.
    from yatt_core.cluster.devices import Device

SHIPPED = Path(__file__).parent / "cards.yaml"
GB = 1e9
CORE = "core"
ONE_NODE = re.compile(r"(\d+)\s*x\s*([A-Za-z][\w.-]*)(?:\s*,\s*(\d+)\s*nodes?)?", re.ASCII)
MANY_NODES = re.compile(r"(\d+)\s*x\s*(\d+)\s*x\s*([A-Za-z][\w.-]*)", re.ASCII)
MOST_DEVICES = 1_000_000
MOST_DIGITS = 7


class Card(SpecModel):
    """The capabilities of one device; field names contain the units, with GB being 1e9 bytes."""

    memory_gb: PositiveFloat
    flops: PositiveFloat
    """Dense bfloat16 operations per second; for a core, float32."""
    bandwidth_gb_s: PositiveFloat
    link_gb_s: PositiveFloat
    host_gb_s: PositiveFloat
    network_gb_s: PositiveFloat
    host_memory_gb: Annotated[float, Field(ge=0)]
    """Host memory per device; 0 if the device is part of the host."""
    host_bandwidth_gb_s: PositiveFloat
    driver_name: str = ""
    """Part of the name that its driver reports; if empty, the card is never detected automatically."""
    source: str

    @property
    def memory(self) -> int:
        """Memory in bytes."""
        return round(self.memory_gb * GB)


class DescribedCluster(SpecModel):
    """Nodes with identical devices.

    named: the devices of each node by its name, for a cluster that exists; empty for equal nodes without names.
    """

    card_name: str
    card: Card
    devices_per_node: PositiveInt
    nodes: PositiveInt = 1
    named: dict[str, int] = Field(default_factory=dict)

    @property
    def by_node(self) -> Mapping[str, int]:
        """Devices of each node by its name."""
        return self.named or {f"node {number}": self.devices_per_node for number in range(1, self.nodes + 1)}

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.devices_per_node * self.nodes

    @property
    def host_memory(self) -> int:
        """Bytes of a node's host memory; 0 if its devices are the host."""
        return int(self.card.host_memory_gb * GB) * self.devices_per_node

    @property
    def memories(self) -> int:
        """Number of separate memories: each device has its own, but all cores of a node share one."""
        return self.nodes if self.card_name == CORE else self.devices

    @property
    def memory(self) -> int:
        """Bytes of each memory."""
        return self.card.memory * (self.devices_per_node if self.card_name == CORE else 1)

    def __str__(self) -> str:
        one = f"{self.devices_per_node}x{self.card_name}"
        return one if self.nodes == 1 else f"{one}, {self.nodes} nodes"


def read_cards(own: Path | None = None) -> dict[str, Card]:
    """Returns the shipped cards, overridden by the cards in the user's own file if there is one."""
    cards = _cards_in(SHIPPED)
    return cards if own is None else {**cards, **_cards_in(own)}


def _cards_in(path: Path) -> dict[str, Card]:
    cards: dict[str, Card] = {}
    wrong: list[Mistake] = []
    for name, values in read_document(path).items():
        try:
            cards[name] = Card.model_validate(values)
        except ValidationError as error:
            wrong += [Mistake((name, *mistake.place), mistake.text) for mistake in mistakes_in(error, Card)]
    if wrong:
        raise ConfigurationError("\n".join(f"{path}: {mistake}" for mistake in wrong))
    return cards


def parse_cluster(text: str, cards: Mapping[str, Card]) -> DescribedCluster:
    """Parses the description of a cluster. Raises `ConfigurationError` if it is malformed or names an unknown card."""
    if found := ONE_NODE.fullmatch(text.strip()):
        per_node = _count(found[1])
        name = found[2]
        nodes = _count(found[3] or "1")
    elif found := MANY_NODES.fullmatch(text.strip()):
        nodes = _count(found[1])
        per_node = _count(found[2])
        name = found[3]
    else:
        raise ConfigurationError(
            f"--cluster {text:.80}: expected devices x card, such as 8xH200, '8xH200,16 nodes' or 16x8xH200 (nodes first)"
        )
    if not 0 < per_node * nodes <= MOST_DEVICES:
        raise ConfigurationError(
            f"--cluster {text:.80}: expected at least one device and one node, and at most {MOST_DEVICES} devices in total"
        )
    known = {key.lower(): key for key in cards}
    if name.lower() not in known:
        # A name that lacks its memory, such as A100, means one of those that begin with it, however alike another one is.
        near = [card for card in known if card.startswith(name.lower())]
        near = near or difflib.get_close_matches(name.lower(), known, n=1)
        meant = " or ".join(known[card] for card in near)
        hint = f"did you mean {meant}?" if near else f"known: {', '.join(cards)}"
        raise ConfigurationError(f"--cluster {text}: unknown card {name!r}; {hint} (--cards FILE adds your own)")
    name = known[name.lower()]
    return DescribedCluster(card_name=name, card=cards[name], devices_per_node=per_node, nodes=nodes)


def _count(digits: str) -> int:
    """Returns a number of devices or nodes; a very long number is cut to fewer digits, which are still too large."""
    return int(digits[: MOST_DIGITS + 1])


def local_cluster(cards: Mapping[str, Card]) -> DescribedCluster:
    """Returns this machine's devices: its GPUs if it has any, otherwise its cores, which share its memory.

    Raises `ConfigurationError` if the GPUs differ or have no card.
    """
    gpus = local_gpus()
    if gpus:
        name, memory = gpus[0]
        if others := sorted({other for other, _ in gpus} - {name}):
            raise ConfigurationError(
                f"this machine has {name} and {', '.join(others)}, but a plan needs a single kind of device; describe it with "
                "--cluster"
            )
        if (known := card_of(name, memory, cards)) is None:
            raise ConfigurationError(
                f"this machine's {name} has no model card; describe the devices with --cluster, and their card with --cards FILE"
            )
        return DescribedCluster(card_name=known, card=cards[known], devices_per_node=len(gpus))
    return core_cluster(cards)


def core_cluster(cards: Mapping[str, Card]) -> DescribedCluster:
    """Returns this machine's cores."""
    import psutil  # not at the top: the cards of GPUs are read where nothing else is installed

    cores = len(os.sched_getaffinity(0))
    share = psutil.virtual_memory().total / cores / GB
    core = cards[CORE].model_copy(update={"memory_gb": share})
    return DescribedCluster(card_name=CORE, card=core, devices_per_node=cores)


def cluster_of(devices: Sequence[Device], cards: Mapping[str, Card]) -> DescribedCluster | None:
    """Returns a Ray cluster's devices, as if all of them were identical and had the smallest memory found.

    Returns None if their memory is unknown: that of a core, or that of a GPU without a card.
    """
    labels = labels_of(devices)
    first = devices[0]
    nodes = len(labels)
    named = dict(Counter(labels[device.node] for device in devices))
    per_node = -(-len(devices) // nodes)
    kinds = [(CORE, cards[CORE], device.memory) for device in devices]
    if first.kind == "gpu":
        kinds = [_kind_of(device, cards) for device in devices]
    name, card, memory = min(kinds, key=lambda kind: kind[2])
    if not memory:
        return None
    held = card.model_copy(update={"memory_gb": memory / GB})
    return DescribedCluster(card_name=name, card=held, devices_per_node=per_node, nodes=nodes, named=named)


def _kind_of(gpu: Device, cards: Mapping[str, Card]) -> tuple[str, Card, int]:
    """Returns a GPU's name, card and bytes of memory, which are 0 if unknown.

    A GPU that only its driver knows has the speeds of the card with the closest memory.
    """
    if (known := card_of(gpu.model, gpu.memory, cards)) is not None:
        return known, cards[known], gpu.memory or cards[known].memory
    near = min((card for name, card in cards.items() if name != CORE), key=lambda card: abs(card.memory - gpu.memory))
    return gpu.model or "GPU", near, gpu.memory


def without_card(devices: Sequence[Device], cards: Mapping[str, Card]) -> frozenset[str]:
    """Returns the nodes that have GPUs without a card, by Ray's ids."""
    return frozenset(
        device.node for device in devices if device.kind == "gpu" and card_of(device.model, 0, cards) is None
    )


def card_of(name: str, memory: int, cards: Mapping[str, Card]) -> str | None:
    """Returns the name of a GPU's card, given the name that its driver or Ray reports; an H200 does not match H20.

    If several cards match equally well, the card whose memory is closest to the GPU's is chosen.

    memory: bytes of the GPU; 0 if unknown, which selects the card with the smallest memory.
    """
    text = name.lower().replace("-", " ")
    fitting = [key for key, card in cards.items() if card.driver_name and card.driver_name.lower() in text]
    return min(fitting, key=lambda key: (-len(cards[key].driver_name), abs(cards[key].memory - memory)), default=None)
