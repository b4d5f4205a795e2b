"""Workloads that do what the contract has no word for, by the name of the mistake. For tests of what is said of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, PositiveInt

from tests.workloads.counting import Counting
from yatt_core.workloads.contract import Columns, Draw, Metrics, RunFacts, SavedState, State

COLUMNS: dict[str, dict[str, Any]] = {
    "masked": {"y": np.ma.masked_array([1.0, 2.0], [True, False])},
    "long": {"y": np.ones(3, np.longdouble)},
    "header": {"__metadata__": np.ones(3)},
    "unnamed": {"": np.ones(3)},
    "surrogate": {"\udcff": np.ones(3)},
}
METRICS: dict[str, dict[str, Any]] = {
    "text": {"loss": "0.5"},
    "at": {"recall@10": 1.0},
    "arrow": {"a→b": 1.0},
    "no name": {"": 1.0},
    "two lines": {"a\nb": 1.0},
    "end of line": {"a\n": 1.0},
    "upwards": {"../up": 1.0},
    "empty part": {"a//b": 1.0},
    "long name": {"x" * 201: 1.0},
}


class Erring(Counting):
    """Makes one mistake."""

    def __init__(self, facts: RunFacts) -> None:
        self._mistake = facts.settings["mistake"]
        if self._mistake == "init exits":
            sys.exit(0)
        super().__init__(RunFacts(seed=facts.seed, settings={}, iterations=facts.iterations))

    def build_inputs(self, folder: Path) -> None:
        super().build_inputs(folder)
        match self._mistake:
            case "build exits":
                sys.exit(0)
            case "pipe":
                os.mkfifo(folder / "pipe")
            case "file name":
                (folder / "a\udcff.txt").write_text("y")
            case "no folder":
                (folder / "numbers.npy").unlink()
                folder.rmdir()
            case "colours":
                raise ValueError("line 1\nline 2 \x1b[31mred\x1b[0m\x9b2J")

    def draw(self, draw: Draw) -> Columns:
        return {**super().draw(draw), **COLUMNS.get(self._mistake, {})}

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        if self._mistake == "update exits":
            sys.exit(0)
        found = super().update(columns, draw)
        match self._mistake:
            case "weights nan":
                self._total[1] = torch.nan
            case "weights inf":
                self._total[1] = torch.inf
        return {**found, **METRICS.get(self._mistake, {})}

    def state(self) -> State:
        weights: dict[str, Any] = {"total": self._total}
        match self._mistake:
            case "dict":
                return {"weights": weights}  # type: ignore[return-value]
            case "list":
                return State(weights=[self._total])  # type: ignore[arg-type]
            case "unnamed weight":
                weights[""] = torch.ones(1)
            case "meta":
                weights["g"] = torch.ones(1, device="meta")
            case "mask":
                weights["mask"] = torch.tensor([0.0, -torch.inf])
            case "mask later undefined":
                weights["mask"] = torch.tensor([0.0, torch.nan if self._count else -torch.inf])
            case "undefined":
                weights["unused"] = torch.tensor([0.0, torch.nan])
            case "undefined later infinite":
                weights["unused"] = torch.tensor([0.0, torch.inf if self._count else torch.nan])
        return State(weights=weights, facts={"count": self._count})

    def continue_from(self, saved: SavedState) -> None:
        saved.weights.whole("another")


class ErringSettings(BaseModel):
    """Settings of a class that does not say itself what is wrong with them."""

    width: PositiveInt = 1


class ErringShape(BaseModel):
    """Something that a class makes."""

    height: PositiveInt


class Modelled(Counting):
    """Reads its settings by a model of pydantic."""

    def __init__(self, facts: RunFacts) -> None:
        ErringSettings.model_validate(dict(facts.settings))
        super().__init__(RunFacts(seed=facts.seed, settings={}, iterations=facts.iterations))


class ModelledElsewhere(Counting):
    """Validates something that is not its settings, by the model of these or by another one."""

    def __init__(self, facts: RunFacts) -> None:
        ErringSettings.model_validate({"width": facts.settings.get("width", 1)})
        match facts.settings["mistake"]:
            case "same model":
                ErringSettings.model_validate({"width": -1})
            case "missing":
                ErringShape.model_validate({"depth": 3})
            case "another type":
                ErringSettings.model_validate({"width": np.zeros(2)})
        super().__init__(RunFacts(seed=facts.seed, settings={}, iterations=facts.iterations))
