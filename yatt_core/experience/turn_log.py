"""The log of one decode batch whose responses have several turns: the policy's answers and the tools' answers.

Each turn and each answered call is stored as a chunk, so that a call whose result was durable is not repeated.
A result is tied to its turn, and a turn to all turns and results before it, by sha256: leftovers of a sequence
of events that was lost do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from yatt_core.errors import DataError
from yatt_core.experience.chunks import Chunk, read_chunk, write_chunk
from yatt_core.prompts.tool_calls import ToolAnswer

ANSWER_SCHEMA = pa.schema(
    [pa.field("text", pa.string(), nullable=False), pa.field("error", pa.string(), nullable=False)]
)


@dataclass(slots=True)
class TurnLog:
    """A batch's turns in order.

    folders: the folders of all writers of the shard, latest first.
    plan: the digest of the inputs that determine the samples.
    own_folder: claims the folder to write to and adds it to `folders`.
    """

    folders: Sequence[Path]
    batch: int
    plan: str
    own_folder: Callable[[], Path]
    _turns: list[str] = field(default_factory=list)
    _answers: list[dict[int, str]] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether the first turn is durable."""
        before = hashlib.sha256().hexdigest()
        return self._find("turn-00", {"plan": self.plan, "before": before}) is not None

    def turn(self) -> pa.Table | None:
        """Returns the policy's answers in the next turn, if durable and preceded by exactly these turns and results."""
        labels = self._labels()
        chunk = self._find(f"turn-{len(self._turns):02d}", labels)
        if chunk is not None:
            self._begin(chunk.sha256)
        return None if chunk is None else chunk.table

    def append_turn(self, table: pa.Table) -> None:
        """Makes the policy's answers in the next turn durable."""
        self._begin(self._write(f"turn-{len(self._turns):02d}", table, self._labels()))

    def answer(self, call: int) -> ToolAnswer | None:
        """Returns the answer to a call of the newest turn, by the call's number, if it is durable."""
        chunk = self._find(self._name(call), {"turn": self._newest()})
        if chunk is None:
            return None
        self._answers[-1][call] = chunk.sha256
        (row,) = chunk.table.to_pylist()
        return ToolAnswer(row["text"], row["error"])

    def append_answer(self, call: int, answer: ToolAnswer) -> None:
        """Makes the answer to a call of the newest turn durable."""
        table = pa.Table.from_pylist([{"text": answer.text, "error": answer.error}], schema=ANSWER_SCHEMA)
        self._answers[-1][call] = self._write(self._name(call), table, {"turn": self._newest()})

    def _begin(self, sha256: str) -> None:
        self._turns.append(sha256)
        self._answers.append({})

    def _newest(self) -> str:
        if not self._turns:
            raise DataError(f"batch {self.batch}: a tool's answer precedes the first turn")
        return self._turns[-1]

    def _name(self, call: int) -> str:
        return f"turn-{len(self._turns) - 1:02d}.call-{call:04d}"

    def _labels(self) -> dict[str, str]:
        """Returns the labels that locate a turn's chunk: the plan, and all turns and results before it."""
        before = hashlib.sha256()
        for turn, answers in zip(self._turns, self._answers, strict=True):
            before.update(f"{turn}:{','.join(f'{call}={answers[call]}' for call in sorted(answers))};".encode())
        return {"plan": self.plan, "before": before.hexdigest()}

    def _find(self, name: str, labels: dict[str, str]) -> Chunk | None:
        for folder in self.folders:
            chunk = read_chunk(self._path(folder, name))
            if chunk is not None and chunk.labels == labels:
                return chunk
        return None

    def _write(self, name: str, table: pa.Table, labels: dict[str, str]) -> str:
        return write_chunk(self._path(self.own_folder(), name), table, labels)

    def _path(self, folder: Path, name: str) -> Path:
        return folder / f"batch-{self.batch:04d}.{name}.arrow"
