"""Names of the flows under which Prefect lists windows, driver sessions, pipelines and maintenance. Imports nothing."""

from __future__ import annotations

FLOW = "yatt"
"""The flow whose flow runs are windows."""
PIPELINE_FLOW = "pipeline"
"""The flow of a pipeline, and of the checks of a deployed one; also in the names of deployments."""
MAINTENANCE_FLOW = "yatt-maintenance"
"""The flow that maintains a home."""
SESSION_FLOWS = ("train", "iterations")
"""The flows whose flow runs belong to one driver session: the session itself, and its blocks of iterations."""
