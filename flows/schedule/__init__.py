"""Deployments and their windows: when a run is driven, and how the flow runs of dead processes are closed."""
