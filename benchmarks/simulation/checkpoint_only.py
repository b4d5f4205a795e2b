"""Recovers from the same faults with checkpoints alone: each fault repeats all iterations since the last checkpoint.

This models a run without a log of its experience. It gets the same iterations, stalls and restarts, and its
checkpoints are durable at once.
"""

from __future__ import annotations

from benchmarks.simulation.trace import Trace


def wall_seconds(trace: Trace, every: int) -> float:
    """Returns the simulated wall time of the whole trace with a checkpoint every `every` iterations."""
    times = trace.durations
    clock = times.reload_trainer
    done = 0
    kept = 0
    struck: set[int] = set()
    while done < trace.iterations:
        iteration = done + 1
        length = times.iteration + (times.stall if iteration % every == 0 else 0.0)
        fault = trace.faults.get(iteration)
        if fault is not None and iteration not in struck:
            struck.add(iteration)
            clock += fault.share * length + times.reload(fault.kind)
            done = kept
            continue
        clock += length
        done = iteration
        if iteration % every == 0:
            kept = iteration
    return clock
