"""Writes rows for the objectives: prompts with a preferred and another response, labels, and answers.

A prompt asks to sort letters. The preferred response has them in order, the other one does not. The rows suit
`objective.kind` dpo, simpo and reward_model (`chosen`, `rejected`), sft (`answer`) and kto (`response`, `label`).

    .venv/bin/python -m examples.preferences data/preferences.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from pathlib import Path

LETTERS = "abcdefgh"
LENGTH = 4


def preference_rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    """Returns rows with distinct prompts, in a seeded order."""
    generator = random.Random(seed)
    prompts = ["".join(letters) for letters in itertools.permutations(LETTERS, LENGTH)]
    rows: list[dict[str, object]] = []
    for letters in generator.sample(prompts, count):
        right = "".join(sorted(letters))
        wrong = right
        while wrong == right:
            wrong = "".join(generator.sample(letters, LENGTH))
        label = generator.random() < 0.5
        row = {"prompt": f"sort {letters}", "chosen": right, "rejected": wrong, "answer": right}
        rows.append({**row, "response": right if label else wrong, "label": label})
    return rows


def main() -> None:
    """Writes the file, and the folder that it is in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=1500, help="number of rows (default: %(default)s)")
    arguments = parser.parse_args()
    rows = preference_rows(arguments.rows)
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    arguments.path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
