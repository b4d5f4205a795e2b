"""The log of one decode batch whose responses go from turn to turn each for itself: the policy's turns and the tools' answers.

Turns that arrive together are stored as one chunk before any of their tools is called, and so are answers before they are used,
so that neither is drawn or called again. A result is tied to its turn, and a turn to all turns and results before it in the same
response, by sha256: leftovers of a sequence of events that was lost do not count. Which turns share a chunk depends on when
they arrive, but nothing depends on that: what is read from the log is found by response and history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from yatt_core.errors import DataError
from yatt_core.experience.chunks import read_chunk, write_chunk
from yatt_core.prompts.tool_calls import ToolAnswer

RESPONSE = "response"
BEFORE = "before"
TURN = "turn"
ANSWER_SCHEMA = pa.schema(
    [
        pa.field(RESPONSE, pa.int32(), nullable=False),
        pa.field(TURN, pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
    ]
)
_NOTHING = hashlib.sha256().hexdigest()


@dataclass(slots=True)
class JoinedTurnLog:
    """A batch's turns, response by response.

    folders: the folders of all writers of the shard, latest first.
    plan: the digest of the inputs that determine the samples.
    own_folder: claims the folder to write to and adds it to `folders`.
    """

    folders: Sequence[Path]
    batch: int
    plan: str
    own_folder: Callable[[], Path]
    # By response: the digest of its turns and answers so far, and of its newest turn.
    _before: dict[int, str] = field(default_factory=dict)
    _newest: dict[int, str] = field(default_factory=dict)
    # What earlier writers have left, by response and what it follows.
    _turns: dict[tuple[int, str], pa.Table] | None = None
    _answers: dict[tuple[int, str], ToolAnswer] = field(default_factory=dict)
    _written: int = 0

    @property
    def begun(self) -> bool:
        """Whether the first turn of a response is durable."""
        return any(before == _NOTHING for _, before in self._left())

    def turn(self, response: int) -> pa.Table | None:
        """Returns a response's next turn as a table of one row, if it is durable and follows exactly its turns and answers."""
        found = self._left().get((response, self._history(response)))
        if found is not None:
            self._newest[response] = self._named(response, found)
        return found

    def append_turns(self, turns: Mapping[int, pa.Table]) -> None:
        """Makes turns of some responses durable, each a table of one row."""
        ordered = sorted(turns)
        table = pa.concat_tables([turns[response] for response in ordered])
        table = table.append_column(pa.field(RESPONSE, pa.int32(), nullable=False), pa.array(ordered, pa.int32()))
        before = pa.array([self._history(response) for response in ordered], pa.string())
        self._write("turns", table.append_column(pa.field(BEFORE, pa.string(), nullable=False), before))
        self._newest |= {response: self._named(response, turn) for response, turn in turns.items()}

    def answer(self, response: int) -> ToolAnswer | None:
        """Returns the answer to the call of a response's newest turn, if it is durable."""
        self._left()
        found = self._answers.get((response, self._turn(response)))
        if found is not None:
            self._follow(response, found)
        return found

    def append_answers(self, answers: Mapping[int, ToolAnswer]) -> None:
        """Makes answers to the calls of some responses' newest turns durable."""
        rows = [
            {RESPONSE: response, TURN: self._turn(response), "text": answer.text, "error": answer.error}
            for response, answer in sorted(answers.items())
        ]
        self._write("answers", pa.Table.from_pylist(rows, schema=ANSWER_SCHEMA))
        for response, answer in answers.items():
            self._follow(response, answer)

    def _history(self, response: int) -> str:
        return self._before.get(response, _NOTHING)

    def _named(self, response: int, turn: pa.Table) -> str:
        """Returns the digest by which an answer names a response's next turn; an equal one follows something else."""
        return hashlib.sha256(f"{self._history(response)}:{_digest(turn)}".encode()).hexdigest()

    def _turn(self, response: int) -> str:
        if response not in self._newest:
            raise DataError(f"batch {self.batch}: a tool's answer precedes the first turn of response {response}")
        return self._newest[response]

    def _follow(self, response: int, answer: ToolAnswer) -> None:
        """Notes that a response's newest turn and an answer are behind it."""
        said = f"{self._turn(response)}:{len(answer.text)}:{answer.text}:{answer.error}"
        self._before[response] = hashlib.sha256(said.encode()).hexdigest()

    def _left(self) -> dict[tuple[int, str], pa.Table]:
        """Returns the turns that writers have left, having read turns and answers once; the latest writer's count."""
        if self._turns is None:
            self._turns = {}
            for folder in reversed(list(self.folders)):
                for table in self._chunks(folder, "turns"):
                    keys = zip(table[RESPONSE].to_pylist(), table[BEFORE].to_pylist(), strict=True)
                    plain = table.drop_columns([RESPONSE, BEFORE])
                    self._turns |= {key: plain.slice(row, 1) for row, key in enumerate(keys)}
                for table in self._chunks(folder, "answers"):
                    self._answers |= {
                        (row[RESPONSE], row[TURN]): ToolAnswer(row["text"], row["error"]) for row in table.to_pylist()
                    }
        return self._turns

    def _chunks(self, folder: Path, kind: str) -> list[pa.Table]:
        """Returns the chunks of a kind that count, in the order in which they were written."""
        found = [read_chunk(path) for path in sorted(folder.glob(f"batch-{self.batch:04d}.{kind}-*.arrow"))]
        return [chunk.table for chunk in found if chunk is not None and chunk.labels == {"plan": self.plan}]

    def _write(self, kind: str, table: pa.Table) -> None:
        self._left()
        path = self.own_folder() / f"batch-{self.batch:04d}.{kind}-{self._written:06d}.arrow"
        write_chunk(path, table, {"plan": self.plan})
        self._written += 1


def _digest(turn: pa.Table) -> str:
    """Returns the sha256 of a turn's values, column by column."""
    found = hashlib.sha256()
    for name in turn.column_names:
        (value,) = turn[name].to_pylist()
        found.update(f"{name}:{np.size(value)}:".encode() + np.asarray(value, np.float64).tobytes())
    return found.hexdigest()
