"""Windows whose run waits at a gate, on a real Prefect server: suspended without process and lease, resumed by the decision."""

from __future__ import annotations

from unittest.mock import MagicMock
from uuid import uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus
from prefect.states import Completed, Running

from db.core.approval_rules import APPROVED, PENDING
from db.write.approvals import ApprovalDecision
from flows.gates.waiting import awaited
from flows.schedule import suspension
from flows.schedule.suspension import RESUMED, SUSPENDED, resume_windows
from tests.flows.schedule.test_form import client as client
from tests.flows.schedule.test_form import deployed
from tests.flows.tools import SECONDS, Driver


def work(driver: Driver, client: SyncPrefectClient, flow_run: FlowRun) -> str:
    """Runs a flow run as a worker does, to the end of its process; returns the name of its state."""
    driver.start("-", "--flow-run", str(flow_run.id)).wait(SECONDS)
    return str(client.read_flow_run(flow_run.id).state_name)


@pytest.mark.verify
def test_a_window_is_suspended_at_a_gate_and_goes_on_once_it_is_approved(
    driver: Driver, client: SyncPrefectClient
) -> None:
    run = driver.create("virtual.yaml", "name=gated", "iterations=3", "evaluation.every=0", "gates.iterations.every=2")
    flow_run = client.create_flow_run_from_deployment(deployed(driver, run))
    assert work(driver, client, flow_run) == "Suspended"
    with driver.ledger() as ledger:
        asked = awaited(ledger, run)
        assert asked is not None and asked.decision is None and ledger.runs.find(run).iteration == 2
        assert ledger.leases.holders() == {}, "nothing is held while the run waits"
        assert resume_windows(ledger) == []

        client.resume_flow_run(flow_run.id)  # in Prefect's UI, which knows nothing of who may decide
        assert work(driver, client, flow_run) == "Suspended"
        assert [row.decision or PENDING for row in ledger.approvals.of(run)] == [PENDING]

        ledger.approvals.decide(asked.id, ApprovalDecision(APPROVED, "ann", "it learns", "cli"))
        assert resume_windows(ledger) == [str(flow_run.id)] and resume_windows(ledger) == []
        assert work(driver, client, flow_run) == "Completed"
        assert (ledger.runs.find(run).state, ledger.runs.find(run).iteration) == ("completed", 3)
        assert len(ledger.events.of_kind(run, SUSPENDED)) == 2 and len(ledger.events.of_kind(run, RESUMED)) == 1
        assert ledger.events.verify(run) is None


@pytest.mark.parametrize(
    ("status", "state", "done"),
    [
        (SetStateStatus.ACCEPT, None, True),
        (SetStateStatus.REJECT, Running(), False),
        (SetStateStatus.ABORT, Completed(), True),
    ],
)
def test_a_flow_run_is_resumed_once_prefect_accepts_it_or_it_is_over(
    monkeypatch: pytest.MonkeyPatch, status: SetStateStatus, state: State | None, done: bool
) -> None:
    client = MagicMock()
    client.__enter__.return_value = client
    client.resume_flow_run.return_value.status = status
    client.read_flow_run.return_value.state = state
    monkeypatch.setattr(suspension, "get_client", lambda sync_client: client)
    assert suspension._resumed(uuid4(), "toy-1") is done
