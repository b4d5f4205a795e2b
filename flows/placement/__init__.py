"""Placement decisions as they are recorded: their inputs, planning ahead, explanation and replay."""
