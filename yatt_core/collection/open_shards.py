"""Shards and decode batches in progress: what a controller knows of them while it collects."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from yatt_core.collection.scores import BatchScores
from yatt_core.collection.shard_rows import BatchMember
from yatt_core.collection.slices import Sealed, SliceBatch
from yatt_core.experience.carried import GoingGroups
from yatt_core.experience.joined_turn_log import JoinedTurnLog
from yatt_core.experience.shard_log import ShardLog
from yatt_core.experience.turn_log import TurnLog
from yatt_core.prompts.stream import Prompt
from yatt_core.protocols.generation import GeneratePiece, Int32
from yatt_core.protocols.judges import ScoreEffort
from yatt_core.protocols.receipts import ShardTask
from yatt_core.tools.dialogue import Dialogue


@dataclass(slots=True)
class OpenShard:
    """A shard in progress: its prompts and the results of its decode batches so far.

    going: of each decode batch that has drawn a slice, what it made of its groups.
    """

    task: ShardTask
    log: ShardLog
    prompts: list[Prompt]
    tokens: list[Int32]
    batches: list[range]
    sealed: Sealed
    finished: dict[int, pa.Table] = field(default_factory=dict)
    judgements: dict[int, pa.Table] = field(default_factory=dict)
    going: dict[int, GoingGroups] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    efforts: list[ScoreEffort] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.finished) == len(self.batches)


@dataclass(slots=True)
class OpenBatch:
    """A decode batch in progress.

    rows: the range of the shard's prompts that the batch contains.
    members: its responses.
    turns: the log of their turns, if these are turns of the whole batch.
    joined: the log of their turns, if each response goes from turn to turn for itself.
    joins: whether each response goes from turn to turn for itself.
    pieces: for a turn that is logged as a whole, the pieces that have arrived so far.
    asked: of each request in progress for turns of single responses, by its number, the responses by row.
    responses: None until the responses are durable.
    slices: None if responses are drawn whole.
    """

    shard: OpenShard
    number: int
    rows: range
    members: list[BatchMember]
    dialogue: Dialogue
    turns: TurnLog
    joined: JoinedTurnLog
    scores: BatchScores
    joins: bool = False
    pieces: list[GeneratePiece] = field(default_factory=list)
    asked: dict[int, tuple[int, ...]] = field(default_factory=dict)
    responses: pa.Table | None = None
    slices: SliceBatch | None = None
