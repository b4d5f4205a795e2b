"""The hosts of the tests: they reach each other, have disks of their own, lose power and parts of their connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.host import Host
from tests.hosts.link import DROP, PASS, RETURN, SENDER, Drop, program
from tests.hosts.namespaces import Inside, inner
from tests.hosts.network import Hosts, NoHostsError

ANSWER = """
import socket, sys
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.bind((sys.argv[1], 9000))
print("listening", flush=True)
while True:
    said, sender = listener.recvfrom(1 << 16)
    print(said.decode(), flush=True)
    listener.sendto(said, sender)
"""
ASK = """
import socket, sys, time
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(float(sys.argv[2]))
answered = 0
for number in range(int(sys.argv[3])):
    try:
        asking.sendto(b"?", (sys.argv[1], 9000))
        asking.recv(1 << 16)
        answered += 1
    except OSError:
        pass
print(answered)
"""
UNPRIVILEGED = """
from pathlib import Path
from tests.hosts.network import Hosts
disk = Path("/mnt")
with Hosts(2, [disk], 1 << 20) as hosts:
    one, two = hosts
    one.fill_disk(disk)
    one.link.lose(0.5)
    one.power_off(keep_disk=False)
    print(two.address)
"""
MEBIBYTE = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def hosts(disk: Path) -> Iterator[Hosts]:
    try:
        made = Hosts(3, [disk], 4 * MEBIBYTE)
    except NoHostsError as error:
        pytest.skip(str(error))
    with made:
        yield made


def answer(host: Host) -> Inside:
    """Starts a process that returns what it gets."""
    process = host.start([sys.executable, "-S", "-c", ANSWER, host.address], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    return process


def ask(host: Host, other: Host, patience: float = 0.2, times: int = 1) -> int:
    """Returns how many questions are answered."""
    argv = [sys.executable, "-S", "-c", ASK, other.address, str(patience), str(times)]
    return int(host.start(argv, stdout=subprocess.PIPE).communicate(timeout=60)[0])


def shell(host: Host, command: str) -> str:
    return host.start(["sh", "-c", command], stdout=subprocess.PIPE).communicate(timeout=60)[0].strip()


def test_hosts_reach_each_other_until_one_is_cut_off_or_loses_power(hosts: Hosts) -> None:
    one, two, three = hosts
    answering = answer(one)
    assert [ask(each, one) for each in hosts] == [1, 1, 1]
    one.link.cut()
    assert [ask(each, one) for each in hosts] == [1, 0, 0]
    one.link.mend()
    one.link.cut(two.address)
    assert [ask(each, one) for each in hosts] == [1, 0, 1]
    one.link.mend()
    assert ask(two, one) == 1
    one.power_off()
    assert answering.wait(10) < 0
    assert [each.has_power for each in hosts] == [False, True, True]
    assert ask(two, one) == 0
    one.power_on()
    answer(one)
    assert ask(three, one) == 1


def test_a_one_way_partition_lets_the_question_through_and_loses_the_answer(hosts: Hosts) -> None:
    one, two, _ = hosts
    answering = answer(one)
    assert answering.stdout is not None
    two.link.cut(receiving=True, sending=False)
    assert ask(two, one) == 0
    assert answering.stdout.readline() == "?\n"
    two.link.mend()
    two.link.cut(receiving=False, sending=True)
    assert ask(two, one) == 0
    answering.kill()
    assert answering.stdout.read() == "", "the question has arrived"


def test_some_packets_are_lost_and_others_late(hosts: Hosts) -> None:
    one, two, _ = hosts
    answer(one)
    one.link.lose(0.5)
    assert 0 < ask(two, one, 0.005, 200) < 150
    one.link.mend()
    two.link.delay(0.3)
    began = time.monotonic()
    assert ask(two, one, 30.0) == 1
    assert time.monotonic() - began > 0.3
    two.link.mend()
    assert ask(two, one) == 1


def test_each_rule_of_a_link_is_a_program() -> None:
    *_, last = program([], SENDER)
    assert last == (RETURN, 0, 0, PASS)
    assert program([Drop()], SENDER)[-2:] == [(RETURN, 0, 0, DROP), last]
    jumps = [after for _, *after, _ in program([Drop("10.0.0.1", 0.25)], SENDER)]
    assert jumps == [[0, 0], [1, 0], [0, 0], [0, 0], [0, 3], [0, 0], [1, 0], [0, 0], [0, 0]]


def test_a_disk_is_the_hosts_own_and_outlives_its_power_unless_it_is_lost(hosts: Hosts, disk: Path) -> None:
    one, two, _ = hosts
    written = disk / "written"
    assert shell(one, f"echo kept > {written}; echo gone > /dev/shm/shared; cat {written}") == "kept"
    assert not written.exists()
    assert shell(two, f"ls {disk} /dev/shm | grep -E 'written|shared'") == ""
    one.power_off()
    one.power_on()
    assert shell(one, f"cat {written}; ls /dev/shm") == "kept"
    one.power_off(keep_disk=False)
    one.power_on()
    assert shell(one, f"ls {disk}") == ""


def test_a_disk_can_be_filled_and_freed(hosts: Hosts, disk: Path) -> None:
    one, two, _ = hosts
    one.fill_disk(disk)
    write = f"head -c {2 * MEBIBYTE} /dev/zero > {disk}/written && echo written"
    assert [shell(one, f"{write} || true"), shell(two, write)] == ["", "written"]
    one.free_disk(disk)
    assert shell(one, write) == "written"


def test_hosts_know_nothing_of_each_others_processes_and_boots(hosts: Hosts) -> None:
    one, two, _ = hosts
    sleeper = one.start(["sleep", "600"])
    assert inner(sleeper) is not None
    assert [shell(each, "cat /proc/[0-9]*/comm | grep -c sleep") for each in (one, two)] == ["1", "0"]
    assert [shell(each, "hostname") for each in (one, two)] == ["h1", "h2"]
    boot = "cat /proc/sys/kernel/random/boot_id"
    boots = {shell(one, boot), shell(two, boot), Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
    sleeper.terminate()
    assert sleeper.wait(10) == -15
    one.power_off()
    one.power_on()
    assert len(boots | {shell(one, boot)}) == 4


def test_orphans_leave_no_remains(hosts: Hosts) -> None:
    (one, *_) = hosts
    assert shell(one, "(sleep 0.01 &) ; sleep 0.1; grep -l 'State:.Z' /proc/[0-9]*/status") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave off being root")
def test_hosts_need_no_root() -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_override"]
    nobody += ["--ambient-caps=+dac_override"]
    done = subprocess.run([*nobody, sys.executable, "-c", UNPRIVILEGED], capture_output=True, text=True, check=False)
    if "cannot be made here" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.stdout == "10.77.0.2\n", done.stderr


def test_an_interrupt_reaches_the_test_alone_so_that_hosts_end_in_order() -> None:
    script = (
        "from tests.hosts.network import Hosts\nwith Hosts(1) as hosts:\n    print('made', flush=True)\n    input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        if process.stdout.readline() != "made\n":
            pytest.skip(process.communicate()[1].strip().splitlines()[-1])
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert said.strip().endswith("KeyboardInterrupt") and "NoHostsError" not in said
