"""A controller's work with a shard log, as scenarios for a child process that is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.experience.tables import SCORES, experience
from yatt_core.experience.prepared import PreparedColumns, write_prepared
from yatt_core.experience.shard_log import ShardLog, adopt, find_sealed
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import ShardReceipt

KEY = WorkKey("run", 0, 3, "collect", 0, 2)
BATCHES = 2
SAMPLES = experience(prompts=4, samples=3)


def batch_of(number: int) -> tuple[pa.Table, pa.Table]:
    """Returns responses and scores of a decode batch."""
    rows = SAMPLES.slice(6 * number, 6)
    return rows.drop_columns(list(SCORES)), rows.select(list(SCORES))


def make_shard(folder: Path, term: int, tell: Callable[[str], None]) -> ShardReceipt:
    """Finishes the shard from its current state; reports each piece of work done once it is acknowledged."""
    if (adopted := adopt(folder, KEY)) is not None:
        return adopted
    log = ShardLog(folder, KEY, term)
    finished = []
    for number in range(BATCHES):
        made_responses, made_scores = batch_of(number)
        if (responses := log.responses(number)) is None:
            log.append_responses(number, made_responses)
            responses = made_responses
            tell(f"responses-{number}")
        if (scores := log.scores(number)) is None:
            log.append_scores(number, made_scores)
            scores = made_scores
            tell(f"scores-{number}")
        for name in scores.column_names:
            responses = responses.append_column(scores.schema.field(name), scores.column(name))
        finished.append(responses)
    receipt = log.seal(pa.concat_tables(finished), {})
    tell("sealed")
    return receipt


def next_attempt(folder: Path, tell: Callable[[str], None]) -> None:
    """Runs a new holder in the next term; a file with the term stands in for the ledger."""
    counter = folder.parent / f"{folder.name}.term"
    term = 1 + (int(counter.read_text()) if counter.exists() else 0)
    counter.write_text(str(term))
    make_shard(folder, term, tell)


def prepare(folder: Path, tell: Callable[[str], None]) -> None:
    """Writes two ranks' columns."""
    write_prepared(folder, KEY, 1, prepared_ranks())
    tell("prepared")


def prepared_ranks() -> list[PreparedColumns]:
    """Returns the columns of six samples: the odd rows by rank 0, the even ones by rank 1."""
    lengths = np.array([3, 0, 2, 4, 1, 5])
    ranks = []
    for rows in (np.array([5, 3, 1]), np.array([0, 2, 4])):
        offsets = np.concatenate(([0], np.cumsum(lengths[rows])))
        tokens = np.concatenate([100 * row + np.arange(lengths[row]) for row in rows]).astype(np.float32)
        ranks.append(
            PreparedColumns(
                ordinals=rows // 2,
                samples=(rows % 2).astype(np.int32),
                advantages=rows / 10,
                response_offsets=offsets,
                log_probs_old=tokens,
            )
        )
    return ranks


def sealed_folders(folder: Path) -> list[str]:
    """Returns the folders of the sealed copies."""
    return [found for _, found in find_sealed(folder, KEY)]
