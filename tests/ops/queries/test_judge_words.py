"""What judges said about a page's samples: words, scores, and why there is no score."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ops.queries.experience import IterationExperience
from ops.queries.judge_words import JudgementView, judgements_of
from yatt_core.errors import DataError
from yatt_core.experience.batch import SHARD_KIND
from yatt_core.experience.judge_log import JUDGEMENTS_SCHEMA
from yatt_core.experience.shard_log import JUDGEMENTS_FILE
from yatt_core.manifests import entry_of_file, publish_manifest


def said(answer: str, score: float | None, cut: bool = False) -> dict[str, Any]:
    return {"answer": answer, "score": score, "tokens": 3, "prompt_tokens": 5, "cut": cut}


def iteration(folder: Path, rows: list[dict[str, Any]]) -> IterationExperience:
    (folder / "shard").mkdir()
    path = folder / "shard" / JUDGEMENTS_FILE
    pq.write_table(pa.Table.from_pylist(rows, schema=JUDGEMENTS_SCHEMA), path)
    digest = publish_manifest(folder / "shard", SHARD_KIND, {}, {JUDGEMENTS_FILE: entry_of_file(path)})
    shard = cast(Any, SimpleNamespace(folder="shard", manifest_sha256=digest))
    return IterationExperience("run", "run", 0, 1, True, folder, (shard,))


def test_each_judgement_is_told_with_its_score_or_why_there_is_none(tmp_path: Path) -> None:
    place = iteration(
        tmp_path,
        [
            {"prompt_ordinal": 7, "sample": 0, "part": "kind", "judgements": [said("good: 8", 8.0)], "error": ""},
            {
                "prompt_ordinal": 7, "sample": 1, "part": "kind", "error": "",
                "judgements": [said("I cannot say", None), said("on the one hand", None, cut=True)],
            },
            {"prompt_ordinal": 7, "sample": 1, "part": "wise", "judgements": [], "error": "infrastructure: status 500"},
            {"prompt_ordinal": 8, "sample": 0, "part": "kind", "judgements": [said("bad: 1", 1.0)], "error": ""},
        ],
    )  # fmt: skip
    found = judgements_of(place, {0: [(7, 0), (7, 1)]}, limit=8)
    assert found == {
        (7, 0): (JudgementView("kind", "good: 8", False, 8.0, ""),),
        (7, 1): (
            JudgementView("kind", "I cannot", True, None, "unparsed"),
            JudgementView("kind", "on the o", True, None, "cut"),
            JudgementView("wise", "", False, None, "infrastructure: status 500"),
        ),
    }


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    row = {"prompt_ordinal": 7, "sample": 0, "part": "kind", "judgements": [said("good: 8", 8.0)], "error": ""}
    place = iteration(tmp_path, [row])
    (tmp_path / "shard" / JUDGEMENTS_FILE).write_bytes(b"PAR1")
    with pytest.raises(DataError, match="does not match its manifest"):
        judgements_of(place, {0: [(7, 0)]}, limit=8)
