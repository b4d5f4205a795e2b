"""A host's link to the bridge, and its faults: cut off both ways or one way, from all hosts or one; loss; delay.

Loss and cuts are classic BPF programs at the bridge's end of the link. A delay is a process (`tests.hosts.delay`) that
takes what the host sends, holds it, and hands it to the bridge: unlike tc's netem, this works with any kernel.
"""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.hosts.namespaces import Inside, Room

Instruction = tuple[int, int, int, int]
LOAD_HALF = 40
LOAD_WORD = 32
JUMP_EQUAL = 21
JUMP_AT_LEAST = 53
RETURN = 6
PASS = 0
DROP = 2
"""What tc does with a packet (TC_ACT_OK, TC_ACT_SHOT)."""
RANDOM = 0xFFFFF000 + 56
"""From this place a random word is loaded."""
PROTOCOL = 12
IPV4 = 0x0800
SENDER = 26
RECEIVER = 30
ENDING_SECONDS = 10.0


@dataclass(frozen=True)
class Drop:
    """A rule that drops packets.

    other: the address of the host that sent or will receive the packet; None for any.
    fraction: of the packets that are dropped, chosen at random.
    """

    other: str | None = None
    fraction: float = 1.0


def program(drops: Sequence[Drop], address_at: int) -> list[Instruction]:
    """Returns the program that applies rules to a packet of IPv4; others, such as questions for addresses, pass.

    address_at: where in a packet the other host's address is.
    """
    code: list[Instruction] = [(LOAD_HALF, 0, 0, PROTOCOL), (JUMP_EQUAL, 1, 0, IPV4), (RETURN, 0, 0, PASS)]
    for drop in drops:
        test: list[Instruction] = [(RETURN, 0, 0, DROP)]
        if drop.fraction < 1.0:
            test = [(LOAD_WORD, 0, 0, RANDOM), (JUMP_AT_LEAST, len(test), 0, int(drop.fraction * 2**32)), *test]
        if drop.other is not None:
            other = int(ipaddress.IPv4Address(drop.other))
            test = [(LOAD_WORD, 0, 0, address_at), (JUMP_EQUAL, 0, len(test), other), *test]
        code += test
    return [*code, (RETURN, 0, 0, PASS)]


class Link:
    """The link of a host.

    port: the name of the bridge's end.
    """

    def __init__(self, port: str, bridge: Room) -> None:
        self._port = port
        self._bridge = bridge
        self._sending: list[Drop] = []
        self._receiving: list[Drop] = []
        self._delay: Inside | None = None

    def plug(self, pid: int, host: Room, address: str) -> None:
        """Connects the network of a process to the bridge, as `eth0` with an address, and a constant one of hardware."""
        hardware = "02:00:" + ":".join(f"{int(byte):02x}" for byte in address.partition("/")[0].split("."))
        device = ("name", "eth0", "address", hardware, "netns", str(pid))
        self._bridge.call("ip", "link", "add", self._port, "type", "veth", "peer", *device)
        self._bridge.call("tc", "qdisc", "add", "dev", self._port, "clsact")
        self._bridge.call("ip", "link", "set", self._port, "master", "bridge", "up")
        host.call("ip", "address", "add", address, "dev", "eth0")
        for device in ("lo", "eth0"):
            host.call("ip", "link", "set", device, "up")

    def unplug(self) -> None:
        """Takes the link away, with its faults."""
        self._end_delay()
        self._sending = []
        self._receiving = []
        self._bridge.call("ip", "link", "delete", self._port)

    def cut(self, other: str | None = None, sending: bool = True, receiving: bool = True) -> None:
        """Cuts the host off from another one's address, or from all, without a sign to anyone.

        sending, receiving: whether what the host sends, and what it would receive, is lost.
        """
        self._add(Drop(other), sending, receiving)

    def lose(self, fraction: float) -> None:
        """Loses this fraction of the packets that the host sends, and of those that it would receive."""
        self._add(Drop(None, fraction), True, True)

    def delay(self, seconds: float) -> None:
        """Delays all that the host sends; not together with other faults."""
        assert not self._sending, "what the delaying process hands on would not be dropped"
        self._end_delay()
        self._delay = self._bridge.start(
            [sys.executable, "-S", "-m", "tests.hosts.delay", self._port, str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._delay.stdout is not None
        assert self._delay.stdout.readline() == "ready\n", "the delaying process does not start"
        self._apply()

    def mend(self) -> None:
        """Ends all faults."""
        self._sending = []
        self._receiving = []
        self._end_delay()
        self._apply()

    def _add(self, drop: Drop, sending: bool, receiving: bool) -> None:
        assert self._delay is None, "what the delaying process hands on would not be dropped"
        self._sending += [drop] * sending
        self._receiving += [drop] * receiving
        self._apply()

    def _apply(self) -> None:
        # What the delaying process has taken must not arrive a first time.
        sent = self._sending if self._delay is None else [Drop()]
        self._set("ingress", program(sent, RECEIVER))
        self._set("egress", program(self._receiving, SENDER))

    def _set(self, direction: str, code: Sequence[Instruction]) -> None:
        words = ",".join([str(len(code)), *(" ".join(map(str, each)) for each in code), ""])
        place = ("dev", self._port, direction, "protocol", "all", "pref", "1", "handle", "1")
        self._bridge.call("tc", "filter", "replace", *place, "bpf", "da", "bytecode", words)

    def _end_delay(self) -> None:
        if self._delay is not None:
            self._delay.communicate(timeout=ENDING_SECONDS)
            self._delay = None
