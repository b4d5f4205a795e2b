"""The log of what judges said of one decode batch: durable before it is used, and read again instead of asking again.

A chunk for each piece of verdicts as it comes. A verdict belongs to a text by sha256: leftovers about another text do not
count. When the shard is sealed, the answers that its scores were made of become a file of it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from yatt_core.experience.chunks import read_chunk, write_chunk
from yatt_core.protocols.judges import JudgeItem, Judgement, Verdict

_JUDGEMENT = pa.struct(
    [
        pa.field("answer", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
    ]
)
_TOLD = (
    pa.field("part", pa.string(), nullable=False),
    pa.field("judgements", pa.list_(_JUDGEMENT), nullable=False),
    pa.field("error", pa.string(), nullable=False),
)
"""Of a reward part. error: why there are no judgements, else empty."""
VERDICT_SCHEMA = pa.schema(
    [
        pa.field("response", pa.int32(), nullable=False),
        pa.field("judged_sha256", pa.string(), nullable=False),
        *_TOLD,
    ]
)
"""response: its number within the decode batch."""
JUDGEMENTS_SCHEMA = pa.schema(
    [
        pa.field("prompt_ordinal", pa.int64(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        *_TOLD,
    ]
)
"""What is kept of a sealed shard: a row a response and reward part."""


class JudgedResponse(Protocol):
    """Whose response a verdict is about."""

    @property
    def ordinal(self) -> int:
        """Of the prompt."""
        ...

    @property
    def sample(self) -> int:
        """Number among the prompt's responses."""
        ...


def judged_sha256(item: JudgeItem) -> str:
    """What a verdict is about: the texts that the judge was shown, and the seeds."""
    told = "\0".join((item.prompt, item.response, item.answer or "", *map(str, item.seeds)))
    return hashlib.sha256(told.encode()).hexdigest()


@dataclass(slots=True)
class JudgeLog:
    """Verdicts on the responses of a batch. folders: those of all writers of the shard, latest first.

    plan: digest of what the samples are made by. own_folder: takes the folder that is written to, and puts it among those.
    """

    folders: Sequence[Path]
    batch: int
    plan: str
    own_folder: Callable[[], Path]
    _known: dict[tuple[str, int, str], Verdict] | None = None
    _used: dict[tuple[str, int], Verdict] = field(default_factory=dict)

    def find(self, part: str, item: JudgeItem) -> Verdict | None:
        """What was said of just this text, if it is durable; with it, it counts as used."""
        verdict = self._durable().get((part, item.number, judged_sha256(item)))
        if verdict is not None:
            self._used[part, item.number] = verdict
        return verdict

    def use_all(self) -> None:
        """Whatever is durable counts as used: the scores that were made of it are durable too."""
        self._used = {(part, number): verdict for (part, number, _), verdict in self._durable().items()}

    def append(self, part: str, items: Iterable[JudgeItem], verdicts: Iterable[Verdict]) -> None:
        """Makes verdicts durable. items: those that they are about, in the same order."""
        told = list(zip(items, verdicts, strict=True))
        if not told:
            return
        rows = [
            {"response": verdict.number, "judged_sha256": judged_sha256(item), **_told(part, verdict)}
            for item, verdict in told
        ]
        folder = self.own_folder()
        path = next(path for n in itertools.count() if not (path := folder / f"{self._prefix}{n:04d}.arrow").exists())
        write_chunk(path, pa.Table.from_pylist(rows, schema=VERDICT_SCHEMA), {"plan": self.plan})
        self._used |= {(part, verdict.number): verdict for _, verdict in told}

    def table(self, members: Sequence[JudgedResponse]) -> pa.Table:
        """All verdicts that were used, by response and part. members: the responses of the batch, by number."""
        rows = [
            {"prompt_ordinal": members[number].ordinal, "sample": members[number].sample, **_told(part, verdict)}
            for (part, number), verdict in sorted(self._used.items(), key=lambda entry: (entry[0][1], entry[0][0]))
        ]
        return pa.Table.from_pylist(rows, schema=JUDGEMENTS_SCHEMA)

    def _durable(self) -> dict[tuple[str, int, str], Verdict]:
        if self._known is None:
            self._known = dict(self._read())
        return self._known

    @property
    def _prefix(self) -> str:
        return f"batch-{self.batch:04d}.judged-"

    def _read(self) -> Iterable[tuple[tuple[str, int, str], Verdict]]:
        """Everything that is durable, the latest writer last, so that its word counts."""
        for folder in reversed(self.folders):
            for path in sorted(folder.glob(f"{self._prefix}*.arrow")):
                chunk = read_chunk(path)
                if chunk is not None and chunk.labels.get("plan") == self.plan:
                    for row in chunk.table.to_pylist():
                        verdict = verdict_of(row)
                        yield (row["part"], verdict.number, row["judged_sha256"]), verdict


def _told(part: str, verdict: Verdict) -> dict[str, object]:
    return {"part": part, "judgements": [asdict(one) for one in verdict.judgements], "error": verdict.error}


def verdict_of(row: dict[str, object]) -> Verdict:
    """The verdict in a row of the log."""
    judgements = row["judgements"]
    assert isinstance(judgements, list)
    return Verdict(int(str(row["response"])), tuple(Judgement(**one) for one in judgements), str(row["error"]))
