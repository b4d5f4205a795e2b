"""Sweeps: the settings that are tried, who proposes them, and the iterations at which weak ones stop."""
