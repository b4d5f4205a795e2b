"""Recorded placement decisions: inputs, planning ahead, explanation and replay."""
