"""Links that decide an approval: signed for one question, until they expire, with a key that only the owner can read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from db.core.approval_rules import REJECTED, Approval, Deciders
from db.core.holder import this_process
from db.ledger import Ledger
from db.write.approvals import ApprovalRequest
from flows.delivery.notifications import NotificationDeliverer, approval_entry, message_of
from flows.gates.links import KEY_FILE, addresses, is_valid, link_key, sign
from flows.run.home import Home
from flows.run.pages import Pages
from flows.run.protocols import Notice, NotificationResult
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.gates import GatesSpec
from yatt_core.spec.sections.guards import NotifySpec

ASKED = Approval(7, "toy-1", "iterations-b0-i2", "toy-1", "iterations", "go on?", {}, Deciders(), 1000, None, REJECTED)
KEY = b"k" * 32
LATER = 5000


def test_a_token_is_valid_for_its_question_until_it_expires() -> None:
    token = sign(KEY, ASKED, LATER)
    assert is_valid(KEY, ASKED, token, LATER - 1) and not is_valid(KEY, ASKED, token, LATER)
    others = (replace(ASKED, id=8), replace(ASKED, asked_at=1001), replace(ASKED, key="x"), replace(ASKED, subject="y"))
    assert not any(is_valid(KEY, other, token, 0) for other in others)
    assert not is_valid(b"j" * 32, ASKED, token, 0)


@pytest.mark.parametrize(
    "token", ["", ".", "5000", "5000.", f"9{sign(KEY, ASKED, LATER)}", "²000.aa", "-1.aa", "\ud800.\ud800", "9" * 40]
)
def test_other_tokens_are_refused(token: str) -> None:
    assert not is_valid(KEY, ASKED, token, 0)


def test_the_key_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: link_key(home), range(8)))
    assert len(keys) == 1 and len(keys.pop()) == 32
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(ConfigurationError, match=f"{KEY_FILE}: .*0600"):
        link_key(home)


def test_a_notification_tells_where_to_decide(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create("toy", {}, "d", 3).id
        asked = ledger.approvals.ask(ApprovalRequest(run, "k", "iterations", "go on?", run))
        pages = Pages(dashboard="http://127.0.0.1:8686")
        assert addresses(home, pages, GatesSpec())(ledger, run, "other") == ""
        assert addresses(home, Pages(), GatesSpec())(ledger, run, "k") == "`yatt approve 1 --why ...`"
        plain = addresses(home, pages, GatesSpec())(ledger, run, "k")
        assert plain == "http://127.0.0.1:8686/approvals/1 or `yatt approve 1 --why ...`"
        signed = addresses(home, pages, GatesSpec(links=True, link_hours=2))(ledger, run, "k")
        token = signed.partition("token=")[2].partition(" ")[0]
        now = ledger.approvals.now()
        assert is_valid(link_key(home), asked, token, now + 7_100_000)
        assert not is_valid(link_key(home), asked, token, now + 7_300_000)


class Collector:
    """A notifier that accepts everything."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    def notify(self, run: str, notices: Sequence[Notice]) -> NotificationResult:
        self.bodies.append(message_of(run, notices).body)
        return NotificationResult(frozenset(notice.key for notice in notices), ())


def test_a_notification_carries_the_link_and_the_ledger_does_not(tmp_path: Path) -> None:
    home = Home(tmp_path)
    pages = Pages(dashboard="http://127.0.0.1:8686")
    told = Collector()
    notify = NotifySpec(interval_seconds=0.0)
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create("toy", {}, "d", 3).id
        fence = ledger.leases.acquire(run, this_process(), 60)
        question = ApprovalRequest(run, "iterations-b0-i2", "iterations", "continue?", run)
        ledger.approvals.ask(question, fence, [approval_entry(run, "iterations-b0-i2", "continue?", 1)])
        deliverer = NotificationDeliverer(told, notify, addresses(home, pages, GatesSpec(links=True)))
        assert deliverer.deliver(ledger, fence, last=True) == 1
        (body,) = told.bodies
        token = body.partition("/approvals/1/link?token=")[2].partition(" ")[0]
        assert body.startswith("- continue? http://127.0.0.1:8686/approvals/1/link?token=")
        assert is_valid(link_key(home), ledger.approvals.find(1), token, ledger.approvals.now())
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(token.encode() in contents for contents in kept), "the link is stored nowhere"


def test_a_notification_goes_out_without_a_link_if_the_key_cannot_be_used(tmp_path: Path) -> None:
    home = Home(tmp_path)
    pages = Pages(dashboard="http://127.0.0.1:8686")
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create("toy", {}, "d", 3).id
        ledger.approvals.ask(ApprovalRequest(run, "k", "iterations", "go on?", run))
        address = addresses(home, pages, GatesSpec(links=True))
        (tmp_path / KEY_FILE).write_bytes(b"short")
        unsigned = "http://127.0.0.1:8686/approvals/1 or `yatt approve 1 --why ...`"
        assert address(ledger, run, "k") == unsigned
        (tmp_path / KEY_FILE).unlink()
        (tmp_path / KEY_FILE).mkdir()
        assert address(ledger, run, "k") == unsigned
