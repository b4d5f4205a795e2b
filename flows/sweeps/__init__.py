"""Sweeps: spaces of settings, who proposes them, and many runs of one spec, of which weak ones stop early."""
