"""Experience tables for tests: ragged tokens, texts beyond ASCII, a flagged sample; plain arithmetic, no generator."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from yatt_core.experience.table import experience_schema

PARTS = ("exact", "format")
SCORES = ("reward", "correct", "reward_error", "reward/exact", "reward/format")


def experience(first: int = 0, prompts: int = 4, samples: int = 3, seed: int = 0) -> pa.Table:
    """Returns prompts x samples rows in canonical order, starting at prompt ordinal `first`."""
    rows = []
    for ordinal in range(first, first + prompts):
        for sample in range(samples):
            rows.append(_row(97 * seed + 13 * ordinal + 5 * sample, ordinal, sample))
    return pa.Table.from_pylist(rows, schema=experience_schema(PARTS))


def _row(salt: int, ordinal: int, sample: int) -> dict[str, object]:
    length = 1 + salt % 8
    exact = float(salt % 3 == 0)
    return {
        "prompt_ordinal": ordinal,
        "sample": sample,
        "prompt_id": f"task-{ordinal}",
        "source": ordinal % 2,
        "prompt": f"Spell wörter {ordinal} backward",
        "prompt_tokens": list(range(3 + ordinal % 3)),
        "response": "ab" * length,
        "response_tokens": [(salt + 7 * i) % 30 for i in range(length)],
        "log_probs_sampler": [-float(np.float32((1 + salt % 5) / (3 + i))) for i in range(length)],
        "loss_mask": [(salt + i) % 4 > 0 for i in range(length)],
        "finish": "stop" if length < 8 else "length",
        "truncated": length == 8,
        "weight_version": 7,
        "reward": exact + 0.1,
        "correct": exact == 1.0,
        "reward_error": "TimeoutError: 10 s" if sample == 2 and ordinal == 1 else None,
        "reward/exact": exact,
        "reward/format": 0.1,
    }
