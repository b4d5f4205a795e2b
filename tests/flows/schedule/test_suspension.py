"""Windows whose run waits at a gate, on a real Prefect server: suspended without process and lease, resumed by the decision."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from db.core.approval_rules import APPROVED, PENDING
from db.write.approvals import Verdict
from flows.gates.waiting import awaited
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

        ledger.approvals.decide(asked.id, Verdict(APPROVED, "ann", "it learns", "cli"))
        assert resume_windows(ledger) == [str(flow_run.id)] and resume_windows(ledger) == []
        assert work(driver, client, flow_run) == "Completed"
        assert (ledger.runs.find(run).state, ledger.runs.find(run).iteration) == ("completed", 3)
        assert len(ledger.events.of_kind(run, SUSPENDED)) == 2 and len(ledger.events.of_kind(run, RESUMED)) == 1
        assert ledger.events.verify(run) is None
