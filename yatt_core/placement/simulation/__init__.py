"""Iterations in simulated time: how long a placement would take."""
