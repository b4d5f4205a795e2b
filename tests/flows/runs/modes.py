"""Modes that decide what an iteration contains, which of them go together, and the runs on torch engines that cover them.

Produces, for each covering run, the overrides of its spec, the phases in which it is killed, and the metrics that show that its
modes had something to do. What goes together is what a spec accepts; `tests.flows.runs.test_modes` compares it with the list of
docs/recovery.md and with the covering runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.spec.feature_examples import go_together
from yatt_core.spec import features
from yatt_core.spec.features import Feature

MODES: Mapping[str, Feature] = {
    "streamed": features.STREAMED,
    "lag": features.LAG,
    "slices": features.SLICES,
    "tail": features.TAIL,
    "over-dispatch": features.OVERDISPATCH,
    "waves": features.CHOSEN_GROUPS,
    "curriculum": features.CURRICULUM,
    "tools": features.TOOLS,
    "judges": features.REWARD_MODEL,
}
"""Modes by the names that tests and docs/recovery.md use. waves: of `dynamic_sampling`, which chooses among groups."""

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "streamed": ("asynchrony.streamed=true",),
    "lag": ("asynchrony.lag=1",),
    "slices": ("rollout.slice_tokens=3", "rollout.max_slices=3", "rollout.in_flight=9"),
    "tail": ("rollout.tail={factor: 2.0, step_tokens: 3, max_iterations: 3}",),
    "over-dispatch": ("dynamic_sampling.overdispatch={factor: 2.0}",),
    "waves": ("dynamic_sampling={kind: valid_group, max_waves: 2}",),
    "curriculum": ("data.curriculum={}",),
    "tools": (),
    "judges": (),
}
SHOWN_BY: Mapping[str, Mapping[str, float]] = {
    "streamed": {"seconds/hidden": 0.0},
    "lag": {"staleness/max": 0.0},
    "slices": {"slices/in_flight": 0.0},
    "tail": {"tail/thrown_away_tokens": 0.0},
    "over-dispatch": {"tail/thrown_away_tokens": 0.0},
    "waves": {"sampling/waves": 1.0},
    "curriculum": {},
    "tools": {"turns": 1.0},
    "judges": {"judge/device_seconds": 0.0},
}
"""Metrics whose largest value exceeds a number if a mode had something to do."""

COMMON = (
    "iterations=4",
    "data.prompts_per_iteration=4",
    "data.held_out=4",
    "evaluation.every=2",
    "checkpoints.every=3",
    "exact=true",
    "trainer.engine.ranks=1",
    "algorithm.mini_batches=1",
    "algorithm.importance_correction={kind: truncate, cap: 2.0}",
)
WORDS = (
    "torch.yaml",
    "data.logical_shards=4",
    "sft.max_steps=60",
    "rollout.samples_per_prompt=2",
    "rollout.max_new_tokens=12",
)
"""A policy that has learnt to end its responses, so that their lengths spread from 1 to 12."""
CALCULATIONS = (
    "calculator.yaml",
    "data.logical_shards=4",
    "recovery.lease_seconds=5",
    "sft.max_steps=40",
    "tracking.reports=false",
)
"""A policy that has learnt to write calls of a tool, though seldom right ones."""

ORDER = (
    "sft", "place", "collect", "begin_ahead", "prepare", "learn", "collect_ahead", "sync", "evaluate", "checkpoint",
    "commit_start", "commit", "committed",
)  # fmt: skip
"""The phases of an iteration in their order, and the moment after its commit."""


@dataclass(frozen=True, slots=True)
class CoveringRun:
    """A run with several modes at once.

    changes: more overrides of its spec.
    """

    modes: tuple[str, ...]
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the run is called in the names of tests."""
        return "+".join((*self.modes, *(change.rpartition(".")[2] for change in self.changes)))

    @property
    def lag(self) -> int:
        """Iterations that are collected ahead."""
        settings = [one for mode in self.modes for one in SETTINGS[mode]]
        lags = [one.partition("=")[2] for one in (*settings, *self.changes) if one.startswith("asynchrony.lag=")]
        return int(lags[-1]) if lags else 0

    def spec(self, judge: Path) -> tuple[str, ...]:
        """Returns the name of a spec and its overrides. judge: folder of a reward model."""
        base = CALCULATIONS if "tools" in self.modes else WORDS
        settings = [one for mode in self.modes for one in SETTINGS[mode]]
        return (*base, *COMMON, *settings, *self._rewards(judge), *self.changes)

    def _rewards(self, judge: Path) -> tuple[str, ...]:
        if "judges" not in self.modes:
            return ()
        function = "exact_match" if "tools" in self.modes else "reasoning_gym"
        rule = {"name": "rule", "function": function}
        model = {"kind": "folder", "path": str(judge)}
        likes = {"name": "likes", "kind": "reward_model", "model": model, "template": "{response}", "score": "sigmoid"}
        return (f"rewards.parts={json.dumps([rule, likes])}",)

    def moments(self, drawing: Sequence[int]) -> list[str]:
        """Returns when the run is killed, one moment after another: in every phase that it has.

        drawing: the iterations that draw; one that a tail leaves nothing to draw has nothing in progress in `collect`.
        """
        moments = {
            "sft:0": 0,
            "sync:0": 0,
            "commit_start:0": 0,
            "place:1": 1,
            "collect:1": 1,
            "prepare:1": 1,
            "learn:1": 1,
        }
        moments |= {"sync:2": 2, "evaluate:2": 2, "committed:2": 2, "checkpoint:3": 3, "commit:3": 3}
        if self.lag:
            # What was begun before a kill is finished in `collect`, so that these two cannot be of the same iteration.
            moments |= {f"begin_ahead:{1 + self.lag}": 1, f"collect_ahead:{2 + self.lag}": 2}
        else:
            later = next(number for number in drawing if number > 1)
            moments[f"collect:{later}"] = later
        return sorted(moments, key=lambda moment: (moments[moment], ORDER.index(moment.partition(":")[0])))

    @property
    def evidence(self) -> dict[str, float]:
        """Metrics whose largest value exceeds a number, since the run's modes had something to do."""
        return {metric: least for mode in self.modes for metric, least in SHOWN_BY[mode].items()}

    @property
    def goes_on(self) -> bool:
        """Whether responses go on under newer weights."""
        return bool({"slices", "tail", "over-dispatch"} & set(self.modes))


COVERING = (
    CoveringRun(("streamed",)),
    CoveringRun(("streamed", "curriculum", "tools", "judges")),
    CoveringRun(("lag",)),
    CoveringRun(("lag",), ("asynchrony.lag=3", "iterations=5")),
    CoveringRun(("lag", "waves", "curriculum", "tools", "judges")),
    CoveringRun(("slices",)),
    CoveringRun(("lag", "slices", "tools", "judges")),
    CoveringRun(("tail",)),
    CoveringRun(("lag", "tail", "judges")),
    CoveringRun(("lag", "over-dispatch")),
)
"""Each mode of asynchrony alone, and sets of modes such that each that goes together is part of one."""


def largest_sets() -> set[frozenset[str]]:
    """Returns the sets of modes that a spec on torch engines accepts together and that are part of no larger one."""
    engines = (features.TORCH_ROLLOUT, features.TORCH_TRAINER)
    found: list[frozenset[str]] = []
    for size in range(len(MODES), 0, -1):
        for names in combinations(MODES, size):
            if any(set(names) <= larger for larger in found):
                continue
            if go_together([*engines, *(MODES[name] for name in names)]):
                found.append(frozenset(names))
    return set(found)
