"""Sweeps: many runs of one spec with other settings, of which weak ones stop early."""
