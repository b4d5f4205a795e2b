"""Iterations in simulated time: what a placement would come to."""
