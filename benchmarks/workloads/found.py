"""What a subject of `benchmarks.workloads` has found, kept in files, and the paired intervals of differences of methods."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
"""The 97.5 % quantile of Student's t by number of pairs."""


@dataclass(frozen=True)
class Found:
    """The findings of one subject.

    figures: under the keys that its claim names. baselines: what they are compared with.
    """

    figures: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


def kept_or_measured(file: Path, measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
    """Returns the figures that a file has; without it, measures them and writes it."""
    if not file.exists():
        figures = measure()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures))
    found: dict[str, float] = json.loads(file.read_text())
    return found


def paired(better: Sequence[float], worse: Sequence[float]) -> dict[str, float]:
    """Returns mean and half width of the 95 % interval of differences between pairs, such as two methods with one seed."""
    differences = [one - other for one, other in zip(better, worse, strict=True)]
    found = {"mean": mean(differences)}
    if len(differences) in STUDENT_T:
        found["half_width"] = STUDENT_T[len(differences)] * stdev(differences) / math.sqrt(len(differences))
    return found
