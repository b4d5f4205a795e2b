"""The smallest workloads: what they learn can be told by hand. For tests of the contract and of what it refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from yatt_core.workloads.contract import Columns, Draw, Listing, Metrics, Ranks, Rows, RunFacts, SavedState, State

NUMBERS = "numbers.npy"
WIDTH = 7
UNKEPT: dict[str, Any] = {"facts": {1}, "tuple": (1, 2), "numbered": {1: 2}}
"""Facts that JSON does not give back."""
BEYOND = {
    "disk": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "memory": MemoryError("no more memory"),
    "device": torch.OutOfMemoryError("no more memory on the device"),
}
"""Exceptions that are no fault of the class."""
UNREADABLE = {
    "data": ValueError("a.txt:3: is empty"),
    "text": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "key": KeyError("text"),
}
"""Exceptions of what reads the user's data."""
TYPES = {"bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}
"""Types of tensors that no checkpoint keeps."""


class Counting:
    """Adds each iteration's numbers to a tensor. `broken` names what goes wrong, for tests."""

    ranks: ClassVar[Literal["one", "any"]] = "any"

    def __init__(self, facts: RunFacts) -> None:
        known = {"broken", "at"}
        if unknown := set(facts.settings) - known:
            raise ValueError(f"unknown: {sorted(unknown)}")
        self._seed = facts.seed
        self._broken = facts.settings.get("broken", "")
        self._at = facts.settings.get("at", 0)

    def build_inputs(self, folder: Path) -> None:
        np.save(folder / NUMBERS, np.arange(WIDTH, dtype=np.float64))
        if self._broken in UNREADABLE:
            raise UNREADABLE[self._broken]
        if self._broken == "link":
            (folder / "below").mkdir()
            (folder / "below" / "linked.npy").symlink_to(folder / NUMBERS)

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        self._numbers = np.load(inputs / NUMBERS)
        self._ranks = ranks
        self._total = torch.zeros(WIDTH, dtype=torch.float64)
        self._count = 0

    def draw(self, draw: Draw) -> Columns:
        if self._broken == "draw":
            return {"numbers": [1.0]}  # type: ignore[dict-item]
        return {"numbers": self._numbers + draw.generator("noise").integers(10)}

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        if self._broken == "update":
            raise RuntimeError("the sum is lost")
        if self._broken in BEYOND:
            raise BEYOND[self._broken]
        self._total += torch.from_numpy(columns["numbers"])
        self._count += 1
        if self._broken.startswith("metric "):
            return {self._broken.removeprefix("metric "): 1.0}
        if self._broken == "loss" and draw.iteration == self._at and draw.number == self._at - 1:
            return {"loss": float("nan")}
        return {"loss": float(self._total.sum())}

    def evaluate(self) -> Metrics:
        return {"mean": float(self._total.mean())}

    def state(self) -> State:
        if self._broken in TYPES:
            return State(weights={"total": self._total}, others={"total": self._total.to(TYPES[self._broken])})
        if self._broken == "hidden":
            return State(weights={"total": self._total.bfloat16()}, others={"total": self._total})
        return State(weights={"total": self._total}, facts={"count": UNKEPT.get(self._broken, self._count)})

    def load(self, saved: SavedState) -> None:
        self._total = saved.weights.whole("total")
        self._count = int(saved.facts["count"])


class Divided(Counting):
    """The same, with the tensor divided over the ranks by rows."""

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        super().begin(inputs, ranks)
        self._own = ranks.share(WIDTH)
        self._total = torch.zeros(len(self._own), dtype=torch.float64)

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        self._total += torch.from_numpy(columns["numbers"][self._own.start : self._own.stop])
        self._count += 1
        return {"loss": float(self._ranks.sum(self._total.sum()))}

    def evaluate(self) -> Metrics:
        parts = self._ranks.gathered({"total": self._total.numpy()})
        return {"mean": float(np.concatenate([part["total"] for part in parts]).mean())}

    def state(self) -> State:
        return State(weights={"total": Rows(self._total, self._own.start, WIDTH)}, facts={"count": self._count})

    def load(self, saved: SavedState) -> None:
        self._total = saved.weights.rows("total", self._own.start, self._own.stop)
        self._count = int(saved.facts["count"])


class Staged(Counting):
    """Multiplies its numbers by a `factor`, which can change, and may begin with the total of an earlier stage.

    Its inputs have the multiples of `spacing`.
    """

    def __init__(self, facts: RunFacts) -> None:
        if "spacing" in facts.tunable:
            raise ValueError("tunable: the inputs depend on spacing; expected it in settings")
        self._given = dict(facts.settings)
        super().__init__(RunFacts(seed=facts.seed, settings={}, iterations=facts.iterations))

    def build_inputs(self, folder: Path) -> None:
        np.save(folder / NUMBERS, np.arange(WIDTH, dtype=np.float64) * self._given.get("spacing", 1))

    def continue_from(self, saved: SavedState) -> None:
        self._total = saved.weights.whole("total")

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        return super().update({"numbers": columns["numbers"] * self._given.get("factor", 1)}, draw)


class Sampling(Counting):
    """Samples from its state before it learns, and notes in a file of its settings that it did."""

    def __init__(self, facts: RunFacts) -> None:
        self._notes = Path(facts.settings["notes"])
        super().__init__(RunFacts(seed=facts.seed, settings={}, iterations=facts.iterations))

    def sample(self, columns: Columns, draw: Draw) -> Columns:
        with self._notes.open("a") as stream:
            stream.write(f"{draw.iteration}\n")
        noise = draw.generator("samples", self._ranks.rank).normal(size=WIDTH)
        return {"numbers": columns["numbers"] + self._total.numpy() + noise}


class Telling(Counting):
    """Gives tables for people. `broken` names the table that cannot be used, for tests."""

    def tables(self) -> Mapping[str, Any]:
        if self._broken == "table name":
            return {"Of All": Listing(("k",), ())}
        rows: Any = ((1, 0.25), (2, float("nan") if self._broken == "table value" else 0.5))
        return {
            "by_k": Listing(("k", "share"), rows),
            "by_kind": Listing(("kind", "share"), (("odd", 0.5), ("even", None))),
        }

    def shown(self, columns: Columns) -> Listing:
        if self._broken == "shown rows":
            return Listing(("place", "number"), ((1,),))
        return Listing(("place", "number"), tuple((f"place {n}", v) for n, v in enumerate(columns["numbers"].tolist())))
