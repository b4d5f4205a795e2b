"""`python make.py`: writes `saved/` and `json/`, datasets as the `datasets` package itself saves them (made with 5.2.0).

The package is needed only for this script; the tests read the copy that is committed next to it.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Image, List, Value, load_dataset
from PIL import Image as Picture

ROWS = 12


def square(shade: int) -> bytes:
    """Returns a PNG file of one shade."""
    stream = io.BytesIO()
    Picture.new("RGB", (4, 4), (shade, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def main() -> None:
    """Rewrites the folder."""
    folder = Path(__file__).parent / "saved"
    shutil.rmtree(folder, ignore_errors=True)
    columns = {
        "prompt": [f"How red is it? {i}" for i in range(ROWS)],
        "chat": [[{"role": "user", "content": f"How red is it? {i}"}] for i in range(ROWS)],
        "answer": [str(i) for i in range(ROWS)],
        "image": [{"bytes": square(i), "path": f"{i}.png"} for i in range(ROWS)],
        "images": [[{"bytes": square(i + j), "path": None} for j in range(i % 3)] for i in range(ROWS)],
    }
    text = Value("string")
    features = Features(
        prompt=text, chat=List({"role": text, "content": text}), answer=text, image=Image(), images=List(Image())
    )
    whole = Dataset.from_dict(columns, features=features)
    splits = DatasetDict(train=whole.select(range(8)), test=whole.select(range(8, ROWS)))
    splits.save_to_disk(folder, num_shards={"train": 2, "test": 1})


def conversation(number: int) -> list[dict[str, object]]:
    """Returns messages whose keys, and whose calls' arguments, differ."""
    arguments = {"city": "Oslo"} if number % 2 else {"first": number, "unit": None}
    call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        {"role": "user", "content": f"Look at {number}."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "look", "content": "seen"},
        {"role": "assistant", "content": f"I saw {number}."},
    ]


def main_json() -> None:
    """Rewrites the folder and the file of rows with different keys, which `datasets` stores as JSON texts."""
    folder = Path(__file__).parent / "json"
    shutil.rmtree(folder, ignore_errors=True)
    rows = [
        {
            "messages": conversation(number),
            "meta": {"level": number} if number % 2 else {"tags": ["a"]},
            "answer": f"2024-05-0{number + 1}",
        }
        for number in range(6)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = load_dataset("json", data_files=str(path), split="train", cache_dir=scratch)
        data.save_to_disk(folder / "saved")
        data.to_parquet(folder / "rows.parquet")


if __name__ == "__main__":
    main()
    main_json()
