"""The log of the verdicts on one decode batch: durable before use, and read back instead of asking the judges again.

Each piece of verdicts is stored as a chunk when it arrives. A verdict is tied by sha256 to its text: leftovers
about another text do not count. When the shard is sealed, the judges' answers from which its scores were
computed become one of its files.
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
        pa.field("cut", pa.bool_(), nullable=False),
    ]
)
_TOLD = (
    pa.field("part", pa.string(), nullable=False),
    pa.field("judgements", pa.list_(_JUDGEMENT), nullable=False),
    pa.field("error", pa.string(), nullable=False),
)
"""Columns of verdicts for one reward part. error: why there are no judgements; empty if there are any."""
VERDICT_SCHEMA = pa.schema(
    [
        pa.field("response", pa.int32(), nullable=False),
        pa.field("judged_sha256", pa.string(), nullable=False),
        *_TOLD,
    ]
)
"""Columns of a chunk. response: the response's number within the decode batch."""
JUDGEMENTS_SCHEMA = pa.schema(
    [
        pa.field("prompt_ordinal", pa.int64(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        *_TOLD,
    ]
)
"""Columns kept in a sealed shard: one row per response and reward part."""


class JudgedResponse(Protocol):
    """The response that a verdict is about."""

    @property
    def ordinal(self) -> int:
        """The ordinal of the prompt."""
        ...

    @property
    def sample(self) -> int:
        """The response's number among the responses to its prompt."""
        ...


def judged_sha256(item: JudgeItem) -> str:
    """Returns the digest of the texts that the judge was shown, and of the seeds."""
    shown = [text for text in (item.thoughts, item.final) if text]
    told = "\0".join((item.prompt, item.response, item.answer or "", *map(str, item.seeds), *shown))
    return hashlib.sha256(told.encode()).hexdigest()


@dataclass(slots=True)
class JudgeLog:
    """Verdicts on the responses of a batch.

    folders: the folders of all writers of the shard, latest first.
    plan: the digest of the inputs that determine the samples.
    own_folder: claims the folder to write to and adds it to `folders`.
    """

    folders: Sequence[Path]
    batch: int
    plan: str
    own_folder: Callable[[], Path]
    _known: dict[tuple[str, int, str], Verdict] | None = None
    _used: dict[tuple[str, int], Verdict] = field(default_factory=dict)

    def find(self, part: str, item: JudgeItem) -> Verdict | None:
        """Returns the durable verdict on exactly this text and marks it as used; None if there is none."""
        verdict = self._durable().get((part, item.number, judged_sha256(item)))
        if verdict is not None:
            self._used[part, item.number] = verdict
        return verdict

    def use_all(self) -> None:
        """Marks all durable verdicts as used: the scores computed from them are durable too."""
        self._used = {(part, number): verdict for (part, number, _), verdict in self._durable().items()}

    def append(self, part: str, items: Iterable[JudgeItem], verdicts: Iterable[Verdict]) -> None:
        """Makes verdicts durable.

        items: the items that the verdicts are about, in the order of the verdicts.
        """
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
        """Returns all verdicts that were used, by response and part.

        members: the responses of the batch, by number.
        """
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
        """Yields all durable verdicts, the latest writer's last, so that these take precedence."""
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
    """Returns the verdict in a row of the log."""
    judgements = row["judgements"]
    assert isinstance(judgements, list)
    return Verdict(int(str(row["response"])), tuple(Judgement(**one) for one in judgements), str(row["error"]))
