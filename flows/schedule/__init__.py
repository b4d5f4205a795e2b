"""Deployments and their windows: when a run is driven, and how dead flow runs are closed."""
