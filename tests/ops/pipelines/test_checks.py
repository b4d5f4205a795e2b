"""The flow of deployed pipelines is found under the names that deployments have, those of earlier versions included."""

from __future__ import annotations

import pytest
from prefect.flows import load_flow_from_entrypoint

from flows.schedule.deployments import entrypoint
from ops.pipelines.checks import check

EARLIER = "ops.cli.commands.pipelines.checks.check"


@pytest.mark.parametrize("name", [entrypoint(check), EARLIER])
def test_a_worker_finds_the_flow(name: str) -> None:
    assert load_flow_from_entrypoint(name) is check
