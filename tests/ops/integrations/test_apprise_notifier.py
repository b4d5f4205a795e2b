"""Notifications to a real server on loopback that may be down, slow, failing or overloaded; no secrets are shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.core.engine import Fence
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.outbox import NOTIFICATION, PEOPLE, OutboxEntry
from flows.delivery import outbox
from flows.delivery.notifications import LONGEST_LIST, NotificationDeliverer, message_of
from flows.delivery.outbox import OutboxPump
from flows.run.protocols import Notice, NotificationResult
from ops.integrations.apprise_notifier import AppriseNotifier, _without
from tests.http_sink import Sink, http_sink
from tests.waiting import wait_until
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.secret_references import SecretReference
from yatt_core.spec.sections.guards import NotifySpec

NOTICE = Notice("toy-1/a", "entropy fell")


def notify(notifier: AppriseNotifier, *notices: Notice) -> NotificationResult:
    return notifier.notify("toy-1", notices or (NOTICE,))


@pytest.fixture
def sink() -> Iterator[Sink]:
    with http_sink() as sink:
        yield sink


def address(sink: Sink, options: str = "") -> str:
    return f"json://person:hunter22@127.0.0.1:{sink.port}/hook-7f3a{options}"


def test_a_message_arrives_with_its_title(sink: Sink) -> None:
    assert notify(AppriseNotifier([address(sink)], "YATT_NOTIFY")) == NotificationResult(frozenset({"toy-1/a"}), ())
    (post,) = sink.posts
    assert (post["title"], post["message"], post["type"]) == ("YATT: toy-1", "- entropy fell [toy-1/a]", "warning")


@pytest.mark.parametrize("status", [500, 429])
def test_a_refusing_server_is_an_error_without_the_address(
    sink: Sink, status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sink.status = status
    written = logging.FileHandler(tmp_path / "log.txt")
    logging.getLogger().addHandler(written)  # As in a driver's log.
    try:
        told = notify(AppriseNotifier([address(sink)], "YATT_NOTIFY"))
    finally:
        logging.getLogger().removeHandler(written)
        written.close()
    (said,) = told.failures
    assert not told.taken and "address 1 of 1 in YATT_NOTIFY" in said and str(status) in said
    heard = said + (tmp_path / "log.txt").read_text() + "".join(capfd.readouterr())
    assert not [secret for secret in ("person", "hunter22", "hook-7f3a", str(sink.port)) if secret in heard]


def test_a_slow_or_dead_server_is_an_error(sink: Sink) -> None:
    sink.stalled.set()
    (slow,) = notify(AppriseNotifier([address(sink, "?rto=0.3")], "YATT_NOTIFY")).failures
    sink.close()
    (down,) = notify(AppriseNotifier([address(sink)], "YATT_NOTIFY")).failures
    assert "address 1 of 1" in slow and "address 1 of 1" in down


def test_the_address_is_removed_from_a_services_message() -> None:
    said = "Connection to mail.example for p@ss42 at hook-7f3a (hook-7f3a) failed: error=500"
    stripped = _without("mailtos://user:p%40ss42@mail.example/hook-7f3a", said)
    assert stripped == "Connection to *** for *** at *** (***) failed: error=500"


def test_each_address_gets_its_missing_messages_and_none_twice(sink: Sink) -> None:
    later = Notice("toy-1/b", "kl rose")
    with http_sink() as other:
        notifier = AppriseNotifier([address(sink), address(other)], "YATT_NOTIFY")
        other.status = 500
        told = notify(notifier)
        assert told.taken == frozenset() and "address 2 of 2" in told.failures[0]
        notify(notifier, NOTICE, later)
        assert [post["message"] for post in sink.posts] == ["- entropy fell [toy-1/a]", "- kl rose [toy-1/b]"]
        other.status = 200
        assert notify(notifier, NOTICE, later) == NotificationResult(frozenset({"toy-1/a", "toy-1/b"}), ())
        assert len(sink.posts) == 2 and other.posts[-1]["message"].splitlines() == [
            "- entropy fell [toy-1/a]", "- kl rose [toy-1/b]",
        ]  # fmt: skip


def test_addresses_come_from_where_the_spec_says(monkeypatch: pytest.MonkeyPatch, sink: Sink) -> None:
    assert AppriseNotifier.from_environment(None) is None
    spec = NotifySpec(addresses=SecretReference(env="OUR_ADDRESSES"))
    monkeypatch.delenv("OUR_ADDRESSES", raising=False)
    with pytest.raises(ConfigurationError, match=r"guards\.notify\.addresses: .*OUR_ADDRESSES"):
        AppriseNotifier.from_environment(spec)
    monkeypatch.setenv("OUR_ADDRESSES", f"{address(sink)}\n  nonsense://hunter22@host")
    with pytest.raises(ConfigurationError, match=r"address 2 of 2 in the environment variable OUR_ADDRESSES") as raised:
        AppriseNotifier.from_environment(spec)
    assert "hunter22" not in str(raised.value)


# -- through the outbox ---------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[str, Ledger, Fence]]:
    address = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(address) as ledger:
        run = ledger.runs.create("toy", {}, "digest", 10).id
        yield address, ledger, ledger.leases.acquire(run, this_process("test"), 600)


def enqueue(ledger: Ledger, fence: Fence, *names: str) -> None:
    entries = [OutboxEntry(f"{fence.run}/{name}", NOTIFICATION, {"text": f"text of {name}"}, 0) for name in names]
    ledger.outbox.enqueue(fence, entries)


def deliverer(*sinks: Sink, interval: float) -> NotificationDeliverer:
    addresses = [address(sink) for sink in sinks]
    return NotificationDeliverer(AppriseNotifier(addresses, "YATT_NOTIFY"), NotifySpec(interval_seconds=interval))


def test_alarms_within_the_interval_go_into_one_message(place: tuple[str, Ledger, Fence], sink: Sink) -> None:
    _, ledger, fence = place
    people = deliverer(sink, interval=3600.0)
    enqueue(ledger, fence, "a")
    assert people.deliver(ledger, fence, last=False) == 1, "the first one is sent at once"
    enqueue(ledger, fence, "b", "c")
    assert people.deliver(ledger, fence, last=False) == 0
    assert deliverer(sink, interval=3600.0).deliver(ledger, fence, last=False) == 0, (
        "the next driver respects the interval too"
    )
    assert len(sink.posts) == 1 and people.waiting(ledger, fence.run) == 2
    assert people.deliver(ledger, fence, last=True) == 2, "the end of a session does not wait"
    assert sink.posts[1]["message"].splitlines() == ["- text of b [toy-1/b]", "- text of c [toy-1/c]"]
    assert ledger.outbox.counts(fence.run, lane=PEOPLE) == (0, 3)
    assert deliverer(sink, interval=0.0).deliver(ledger, fence, last=False) == 0, "nothing twice"


def test_an_undelivered_message_is_sent_again_by_the_pump(
    place: tuple[str, Ledger, Fence], sink: Sink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(outbox, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(outbox, "POLL_SECONDS", 0.05)
    at, ledger, fence = place
    sink.status = 500
    enqueue(ledger, fence, "a")
    pump = OutboxPump(at, fence, deliverer(sink, interval=0.0))
    pump.start()
    wait_until(lambda: len(sink.posts) >= 2, seconds=30.0)
    enqueue(ledger, fence, "b")
    sink.status = 200
    wait_until(lambda: ledger.outbox.counts(fence.run, lane=PEOPLE) == (0, 2), seconds=30.0)
    assert pump.stop(30)
    assert "[toy-1/a]" in sink.taken and "[toy-1/b]" in sink.taken
    stored = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"text of a" in contents for contents in stored.values()), "the ledger's files hold the message"
    for secret in (b"hunter22", b"hook-7f3a"):
        assert not [name for name, contents in stored.items() if secret in contents], "the address is stored nowhere"


def test_an_address_that_is_down_does_not_block_the_others(place: tuple[str, Ledger, Fence], sink: Sink) -> None:
    _, ledger, fence = place
    with http_sink() as down:
        down.status = 500
        people = deliverer(down, sink, interval=0.0)
        for name in ("first", "second"):
            enqueue(ledger, fence, name)
            with pytest.raises(InfrastructureError, match="address 1 of 2"):
                people.deliver(ledger, fence, last=False)
        enqueue(ledger, fence, "paused")
        with pytest.raises(InfrastructureError, match="address 1 of 2"):
            people.deliver(ledger, fence, last=True)
        assert [post["message"] for post in sink.posts] == [
            f"- text of {name} [toy-1/{name}]" for name in ("first", "second", "paused")
        ]
        assert people.waiting(ledger, fence.run) == 3
        down.status = 200
        assert people.deliver(ledger, fence, last=True) == 3
        assert len(down.posts[-1]["message"].splitlines()) == 3 and len(sink.posts) == 3


def test_messages_stay_infrequent_while_an_address_is_down(place: tuple[str, Ledger, Fence], sink: Sink) -> None:
    _, ledger, fence = place
    with http_sink() as down:
        down.status = 500
        people = deliverer(down, sink, interval=3600.0)
        for name in ("first", "second"):
            enqueue(ledger, fence, name)
            with pytest.raises(InfrastructureError):
                people.deliver(ledger, fence, last=False)
        assert (len(down.posts), len(sink.posts)) == (2, 1), "retried without the messages of the interval"


def test_an_undelivered_message_waits_for_the_next_session(place: tuple[str, Ledger, Fence], sink: Sink) -> None:
    at, ledger, fence = place
    sink.status = 429
    enqueue(ledger, fence, "a")
    pump = OutboxPump(at, fence, deliverer(sink, interval=0.0))
    pump.start()
    assert not pump.stop(30)
    ledger.leases.release(fence)
    following = ledger.leases.acquire(fence.run, this_process("next"), 600)
    sink.status = 200
    pump = OutboxPump(at, following, deliverer(sink, interval=0.0))
    pump.start()
    assert pump.stop(30)
    assert [post["message"] for post in sink.posts][-1] == "- text of a [toy-1/a]", (
        "the id shows that it is the same message"
    )


def test_a_message_with_many_alarms_has_the_newest_and_no_secrets() -> None:
    message = message_of("toy-1", [Notice(f"toy-1/{n}", f"password=hunter{n}") for n in range(25)])
    lines = message.body.splitlines()
    assert lines[0].startswith("5 earlier ") and "`yatt alarms toy-1`" in lines[0]
    assert len(lines) == LONGEST_LIST + 1 and lines[-1] == "- password=*** [toy-1/24]"
