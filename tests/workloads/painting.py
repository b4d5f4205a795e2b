"""A workload that paints images of one colour and learns to paint them brighter; for tests of what is shown of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from yatt_core.workloads.contract import Columns, Draw, Images, Metrics, Ranks, RunFacts, SavedState, State

PROMPTS = ("a bright wall", "<script>alert(1)</script>")
GROUP = 3
SIDE = 4
WRONG: Mapping[str, Any] = {
    "type": "painted",
    "pixels": Images(np.zeros((1, SIDE, SIDE, 3)), ["one"], np.zeros(1), np.zeros(1, np.int64)),
    "shape": Images(np.zeros((1, SIDE, SIDE), np.uint8), ["one"], np.zeros(1), np.zeros(1, np.int64)),
    "size": Images(np.zeros((1, 0, SIDE, 3), np.uint8), ["one"], np.zeros(1), np.zeros(1, np.int64)),
    "captions": Images(np.zeros((1, SIDE, SIDE, 3), np.uint8), [], np.zeros(1), np.zeros(1, np.int64)),
    "rows": Images(np.zeros((1, SIDE, SIDE, 3), np.uint8), ["one"], np.zeros((1, 3)), np.zeros(1, np.int64)),
    "scalar": Images(np.zeros((1, SIDE, SIDE, 3), np.uint8), ["one"], np.float64(1), np.zeros(1, np.int64)),  # type: ignore[arg-type]
    "text": Images(np.zeros((1, SIDE, SIDE, 3), np.uint8), "1", np.zeros(1), np.zeros(1, np.int64)),
    "words": Images(np.zeros((1, SIDE, SIDE, 3), np.uint8), [1], np.zeros(1), np.zeros(1, np.int64)),  # type: ignore[list-item]
    "seeds": Images(np.zeros((1, SIDE, SIDE, 3), np.uint8), ["one"], np.zeros(1), np.zeros(1)),
}
"""What `images` returns for a setting `wrong`."""


class Painting:
    """Its state is one level of brightness, its reward the mean brightness. `wrong` names what is wrong, for tests."""

    ranks: ClassVar[Literal["one", "any"]] = "any"

    def __init__(self, facts: RunFacts) -> None:
        self._wrong = facts.settings.get("wrong", "")

    def build_inputs(self, folder: Path) -> None:
        (folder / "side.txt").write_text(str(SIDE))

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        self._ranks = ranks
        self._level = torch.zeros(1)

    def draw(self, draw: Draw) -> Columns:
        count = len(PROMPTS) * GROUP
        seeds = np.array([draw.seed_of("paint", number) for number in range(count)], np.uint64)
        return {"prompt": np.repeat(np.arange(len(PROMPTS)), GROUP), "seed": seeds}

    def sample(self, columns: Columns, draw: Draw) -> Columns:
        share = self._ranks.share(len(columns["seed"]))
        own = {name: column[share.start : share.stop] for name, column in columns.items()}
        levels = [np.random.default_rng(seed).integers(100) + int(self._level) for seed in own["seed"]]
        self._pixels = np.tile(np.array(levels, np.uint8).reshape(-1, 1, 1, 1), (1, SIDE, SIDE, 3))
        reward = np.array(levels, np.float64) / 255
        if self._wrong == "reward":
            reward[0] = np.nan
        return {**own, "reward": reward}

    def images(self, columns: Columns, draw: Draw) -> Images:
        if self._wrong in WRONG:
            found: Images = WRONG[self._wrong]
            return found
        captions = [PROMPTS[number] for number in columns["prompt"]]
        return Images(self._pixels, captions, columns["reward"], columns["seed"])

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        self._level += 40
        return {"loss": 1.0}

    def evaluate(self) -> Metrics:
        return {"accuracy": float(self._level)}

    def state(self) -> State:
        return State(weights={"level": self._level})

    def load(self, saved: SavedState) -> None:
        self._level = saved.weights.whole("level")
