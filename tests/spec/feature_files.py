"""The files that the examples of features name: rows of all kinds, pictures, and small models."""

from __future__ import annotations

from pathlib import Path

from tests.inputs.example_specs import png, write_jsonl
from tests.models.folders import make_folder

ROWS = 24


def write_feature_files(folder: Path) -> None:
    """Writes everything into a folder."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    words = [f"What is behind {number}?" for number in range(ROWS)]
    rows = [{"prompt": text, "answer": str(number + 1)} for number, text in enumerate(words)]
    (folder / "a.png").write_bytes(png(1, 2, 3))
    write_jsonl(folder / "rows.jsonl", rows)
    write_jsonl(
        folder / "pictures.jsonl", [{**row, "prompt": f"{row['prompt']} See.", "image": "a.png"} for row in rows]
    )
    preferred = [{**row, "chosen": row["answer"], "rejected": "no"} for row in rows]
    write_jsonl(folder / "preferences.jsonl", preferred)
    write_jsonl(folder / "rendered.jsonl", [{**row, "prompt": f"Q: {row['prompt']} A:"} for row in preferred])
    for name in ("policy", "judge"):
        make_folder(folder / name, "qwen3", head_dim=8)
    tokenizer = AutoTokenizer.from_pretrained(folder / "judge")
    config = AutoConfig.from_pretrained(folder / "judge", num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "classifier")
    tokenizer.save_pretrained(folder / "classifier")
