"""`python make.py`: writes `saved/`, a dataset as the `datasets` package itself saves it (made with 5.2.0).

The package is needed only for this script; the tests read the copy that is committed next to it.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Image, List, Value
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


if __name__ == "__main__":
    main()
