"""What a spec says under `workload.settings` of a knowledge graph's run."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from yatt_workloads.graphs_settings import GraphSettings

Walk = Literal["rt", "ht", "htht", "rhrt"]
"""Statistics of the training triples, as walks; the letters are read along the walk from what is known to the tail. With the
tail known and the head wanted, heads and tails change places."""

WALKER = "deepwalk"
"""The model that learns from random walks."""

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class GeneratedGraph(GraphSettings):
    """A graph in which each relation turns a ring of entities by its own number of places.

    held_out: share of the triples for validation, and again for the test.
    """

    entities: Annotated[int, Field(ge=4, strict=True)] = 60
    relations: Annotated[int, Field(ge=1, strict=True)] = 12
    held_out: Annotated[float, Field(gt=0, lt=0.5, strict=True)] = 0.1

    @model_validator(mode="after")
    def _different(self) -> Self:
        if self.relations >= self.entities:
            raise ValueError(f"relations: expected fewer than entities {self.entities} (given: {self.relations})")
        return self


class MemberSettings(GraphSettings):
    """One model of the ensemble.

    model: `deepwalk` learns from random walks and knows no relations; the others learn from triples.
    width: numbers in an entity's vector.
    block: width of an orthogonal block of `ote` and `note`.
    margin: added to a negative distance before the logistic loss.
    temperature: of the softmax by which hard negatives weigh more (arXiv 1902.10197); 0 weighs all alike.
    smoothing: how far an entity moves, before it is evaluated, towards where its training triples expect it; 1 is all the way.
    weight: in the ensemble.
    """

    model: Literal["transe", "rotate", "quate", "ote", "note", "deepwalk"]
    width: Annotated[int, Field(ge=4, strict=True)] = 64
    block: Annotated[int, Field(ge=1, strict=True)] = 4
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 6.0
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 0.01
    temperature: Weight = 1.0
    smoothing: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.0
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 1.0

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        block = {"rotate": 2, "quate": 4, "ote": self.block, "note": self.block}.get(self.model, 1)
        if self.width % block:
            raise ValueError(f"width: {self.model} needs a multiple of {block} (given: {self.width})")
        if self.smoothing and self.model == WALKER:
            raise ValueError(
                "smoothing: deepwalk has no relations that could say where an entity is expected; leave it out"
            )
        return self


class KnowledgeGraphSettings(GraphSettings):
    """The whole of `workload.settings`.

    folder: with `train.txt`, `valid.txt` and `test.txt`: a triple a line, its head, relation and tail separated by tabs.
    generated: instead of a folder.
    triples: how many training triples an iteration draws, without replacement; all if None.
    batch: triples of one step.
    negatives: drawn for each triple.
    hops: longest distance of a pair on a random walk.
    statistics: weights of the statistics in the ensemble.
    """

    folder: str | None = None
    generated: GeneratedGraph | None = None
    members: Annotated[tuple[MemberSettings, ...], Field(min_length=1)] = (MemberSettings(model="note"),)
    statistics: dict[Walk, Weight] = Field(default_factory=dict)
    triples: Annotated[int, Field(ge=1, strict=True)] | None = None
    batch: Annotated[int, Field(ge=1, strict=True)] = 256
    negatives: Annotated[int, Field(ge=1, strict=True)] = 32
    hops: Annotated[int, Field(ge=1, strict=True)] = 2

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.folder is None) == (self.generated is None):
            raise ValueError("expected either folder or generated")
        if "hops" in self.model_fields_set and all(member.model != WALKER for member in self.members):
            raise ValueError(f"hops: no member is {WALKER}, which walks; leave it out")
        return self
