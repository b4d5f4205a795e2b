"""The drawn dataset: the same bytes for the same arguments, answers balanced, pictures that show what they say."""

import json
import random
from collections import Counter

import numpy as np

from examples.shapes import COLOURS, GROUND, draw_shapes, write_shapes
from yatt_core.prompts.media import decode_media


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_arguments_write_the_same_files(tmp_path):
    for name in ("a", "b"):
        write_shapes(tmp_path / name, 20, 10, seed=3)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    write_shapes(tmp_path / "c", 20, 10, seed=4)
    assert not set(contents(tmp_path / "a").values()) & set(contents(tmp_path / "c").values())


def test_rows_name_pictures_and_answers_are_balanced(tmp_path):
    write_shapes(tmp_path, 90, 45)
    pictures = set()
    for name, size in (("train", 90), ("held-out", 45)):
        rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert Counter(row["answer"] for row in rows) == {str(answer): size // 9 for answer in range(1, 10)}
        for row in rows:
            data = (tmp_path / row["image"]).read_bytes()
            assert data.startswith(b"\x89PNG") and decode_media(data).size == (32, 32)
            pictures.add(data)
    assert len(pictures) == 135, "held-out pictures are none of the training ones"


def test_a_picture_has_as_many_shapes_as_it_says():
    for count in (1, 5, 9):
        pixels = np.asarray(draw_shapes(random.Random(count), count))
        cells = pixels.reshape(4, 8, 4, 8, 3).transpose(0, 2, 1, 3, 4).reshape(16, 64, 3)
        filled = (cells != GROUND).any(axis=2).sum(axis=1)
        assert np.count_nonzero(filled >= 9) == count and np.count_nonzero(filled) == count
        assert {tuple(colour) for cell in cells for colour in cell.tolist()} <= {GROUND, *COLOURS}
