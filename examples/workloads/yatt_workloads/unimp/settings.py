"""What a spec says under `workload.settings` of a graph's run."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from yatt_workloads.graphs_settings import GraphSettings

Share = Annotated[float, Field(ge=0, lt=1, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
MOST_NODES = 20_000
"""Nodes of a generated graph: all pairs are drawn at once."""


class BlockModel(GraphSettings):
    """A stochastic block model: nodes of a class are joined more often than others, and have similar features.

    within, across: mean number of a node's neighbours of its own class, and of all other classes together.
    signal: how far the classes' centres are apart, in units of the features' noise.
    train, valid: shares of the nodes; the rest is the test split.
    """

    nodes: Annotated[int, Field(ge=10, le=MOST_NODES, strict=True)] = 1_500
    classes: Annotated[int, Field(ge=2, strict=True)] = 5
    features: Count = 16
    within: Positive = 5.0
    across: Positive = 5.0
    signal: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 0.2
    train: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.6
    valid: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.1

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.train + self.valid >= 1:
            raise ValueError(
                f"train and valid: expected shares that leave a test split (given: {self.train} and {self.valid})"
            )
        if self.within * self.classes > self.nodes:
            raise ValueError(
                f"within: expected at most nodes / classes, {self.nodes / self.classes} (given: {self.within})"
            )
        others = self.nodes * (self.classes - 1) / self.classes
        if self.across > others:
            raise ValueError(f"across: expected at most the nodes of other classes, {others} (given: {self.across})")
        return self


class NeighbourSampling(GraphSettings):
    """Steps on sampled neighbourhoods instead of the whole graph.

    batch: nodes of a step whose labels are predicted.
    part: nodes whose neighbourhoods are sampled and computed together; a rank takes its share of a step's parts.
    neighbours: of each node, at most, for each layer.
    """

    batch: Count = 256
    part: Count = 64
    neighbours: Count = 10


class NodeLabelSettings(GraphSettings):
    """The whole of `workload.settings`.

    folder: with `features.npy`, `edges.npy`, `labels.npy` and `splits.npy` (docs/graphs.md).
    generated: instead of a folder.
    labels: whether the model sees labels of other nodes.
    hidden: share of the training nodes whose labels are hidden, and predicted, in a step on the whole graph.
    steps: of an iteration.
    """

    folder: str | None = None
    generated: BlockModel | None = None
    sampling: NeighbourSampling | None = None
    labels: Annotated[bool, Field(strict=True)] = True
    hidden: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.4
    steps: Count = 5
    width: Count = 32
    heads: Count = 2
    layers: Count = 2
    dropout: Share = 0.3
    attention_dropout: Share = 0.1
    rate: Positive = 0.01
    decay: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 0.005

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.folder is None) == (self.generated is None):
            raise ValueError("expected either folder or generated")
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of heads {self.heads} (given: {self.width})")
        if "hidden" in self.model_fields_set and (self.sampling is not None or not self.labels):
            raise ValueError(
                "hidden: with sampling, a batch says which labels are hidden, and without labels there are none; leave it out"
            )
        return self
