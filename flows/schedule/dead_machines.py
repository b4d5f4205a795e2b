"""An automation of the service group's Prefect server: it closes flow runs whose machine is dead.

Prefect's client sends a heartbeat for each flow run that it drives. If one has come and neither another nor any change of
state has followed in time, the flow run counts as crashed. The reaper (`flows.schedule.reaper`) knows more about windows
and drivers, but only the machine that it runs on; of other machines it hears after half an hour. Only Prefect's display
depends on it: the lease decides who drives a run.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.prefect_io.prefect_server import HEARTBEAT_SECONDS
from flows.schedule.flow_names import FLOW, MAINTENANCE_FLOW, PIPELINE_FLOW, SESSION_FLOWS

NAME = "yatt: flow runs of dead machines"
HEARTBEAT = "prefect.flow-run.heartbeat"
MISSED_BEATS = 10
"""A flow run without this many heartbeats is dead; an outage of Prefect's server should be shorter."""
WATCHED = (FLOW, SESSION_FLOWS[0], PIPELINE_FLOW, MAINTENANCE_FLOW)
"""YATT's flows that send heartbeats. Other flows of the server are none of its business."""


def automation(within: timedelta = timedelta(seconds=MISSED_BEATS * HEARTBEAT_SECONDS)) -> AutomationCore:
    """Returns the automation.

    within: time without a heartbeat or a change of state after which a flow run counts as crashed.
    """
    watched = {"prefect.resource.role": "flow", "prefect.resource.name": list(WATCHED)}
    trigger = EventTrigger(
        after={HEARTBEAT},
        # Of any name: a window may end as `Held` or `Missed`, and be suspended at a gate.
        expect={"prefect.flow-run.*"},
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        match_related=ResourceSpecification(watched),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=within,
    )
    said = f"its machine is dead or unreachable: no heartbeat for {within.total_seconds():g} s"
    return AutomationCore(
        name=NAME,
        description="Applied by `yatt up`. It changes what Prefect shows; no run depends on it.",
        trigger=trigger,
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message=said)],
    )


def apply_automation(wanted: AutomationCore | None = None) -> str:
    """Creates the automation, or replaces one of another version; returns what was done, or an empty text.

    An automation that somebody has paused stays paused.

    Raises what Prefect's client raises.
    """
    core = wanted or automation()
    with get_client(sync_client=True) as client:
        found = client.read_automations_by_name(NAME)
        if not found:
            client.create_automation(core)
            return "created"
        newest, *others = found
        for other in others:  # two groups may have applied it at the same moment
            client.delete_automation(other.id)
        if _is_same(newest, core):
            return ""
        _replace(client, newest, core)
        return "replaced"


def _is_same(found: AutomationCore, wanted: AutomationCore) -> bool:
    parts = {"description", "trigger", "actions"}
    return found.model_dump(mode="json", include=parts) == wanted.model_dump(mode="json", include=parts)


def _replace(client: SyncPrefectClient, found: Automation, wanted: AutomationCore) -> None:
    client.update_automation(found.id, wanted.model_copy(update={"enabled": found.enabled}))
