"""Kinds of workloads that have names in a spec, and what a run of each kind has: the flow has no phase for what it lacks.

Consumes a kind and whether an objective learns from rows, or a spec as plain values. Needs nothing that reading a spec needs, so
that commands ask at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

LANGUAGE = "language"
"""A language model is trained, as the other sections of a spec describe it."""
ROWS = "rows"
"""A language model learns from the rows of the run's data, by an `objective`."""
CUSTOM = "custom"
"""A class of the user's own, in a file."""
TRAINER = "trainer"
"""The trainer's ranks sample, if anybody does."""
PAIRED = frozenset({"dpo", "simpo"})
"""Objectives that compare two responses, which rows contain or, with `pairs: sampled`, the policy samples."""


@dataclass(frozen=True, slots=True)
class WorkloadParts:
    """What a run has by its workload. What is missing here has no phase, no actor and no page.

    controllers: controllers and rollout engines, which collect what is learnt from.
    language_model: a model as the section `model` describes it, whose size is known, and which is exported and answers tasks;
        otherwise the workload's own class builds, checks and describes it.
    learns_from: `shards` that controllers seal; `rows` of the run's data, named by the cursor; or `columns` that the trainer
        seals before it learns.
    own_metrics: whether its metrics have names that are seen in its runs alone.
    told_iterations: whether it is told the number of iterations, so that any update may depend on it.
    samplers: rollout engines that sample in place of the trainer, of a workload without controllers.
    """

    controllers: bool
    language_model: bool
    learns_from: Literal["shards", "rows", "columns"]
    own_metrics: bool = False
    told_iterations: bool = False
    samplers: bool = False

    @property
    def judges(self) -> bool:
        """Whether models or services give opinions, as rewards of what controllers collect."""
        return self.controllers

    @property
    def sync(self) -> bool:
        """Whether there are engines to which the trainer sends its weights after an update."""
        return self.controllers or self.samplers


OF_LANGUAGE = WorkloadParts(controllers=True, language_model=True, learns_from="shards")
OF_ROWS = WorkloadParts(controllers=False, language_model=True, learns_from="rows")
OF_CLASSES = WorkloadParts(
    controllers=False,
    language_model=False,
    learns_from="columns",
    own_metrics=True,
    told_iterations=True,
)
"""What a run has whose workload is a class of the public contract (`workloads/contract.py`), such as diffusion."""

OF_SAMPLED = replace(OF_CLASSES, samplers=True)
"""The same with samplers."""


def parts_of_kind(kind: str, learns_from_rows: bool, sampled_by: str = TRAINER) -> WorkloadParts:
    """Returns what a run has.

    kind: its `workload.kind`.
    sampled_by: its `workload.sampled_by`.
    learns_from_rows: whether an objective learns from rows. The kind of a language model may then be either: specs of earlier
        versions say `language`.
    """
    if kind not in (LANGUAGE, ROWS):
        return OF_CLASSES if sampled_by == TRAINER else OF_SAMPLED
    return OF_ROWS if learns_from_rows else OF_LANGUAGE


def parts_in(spec: Mapping[str, Any]) -> WorkloadParts:
    """Returns what a run has.

    spec: its spec as plain values; one without a workload, as of earlier versions, trains a language model.
    """
    objective = spec.get("objective")
    sampled = objective is not None and objective["kind"] in PAIRED and objective.get("pairs", "data") == "sampled"
    workload = spec.get("workload", {})
    learns_from_rows = objective is not None and not sampled
    return parts_of_kind(workload.get("kind", LANGUAGE), learns_from_rows, workload.get("sampled_by", TRAINER))
