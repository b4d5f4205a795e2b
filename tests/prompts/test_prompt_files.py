"""Reading prompts from files: how often a group of rows is read, and how much is kept."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from yatt_core.prompts import prompt_files
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.prompt_files import GROUP_ROWS, PromptFile, PromptWriter

ROWS = 20 * GROUP_ROWS


def prompt(row: int) -> Prompt:
    """Returns the prompt of a row."""
    return Prompt(
        source=0, index=row, prompt_id=f"train/0/{row}", text=f"question {row}", answer=None, entry={"row": row}
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file of twenty groups of rows."""
    file = tmp_path_factory.mktemp("prompts") / "train.parquet"
    with PromptWriter(file, with_media=False) as writer:
        for row in range(ROWS):
            writer.add(prompt(row))
    return file


def reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PromptFile, list[int]]:
    """Returns the file, and the groups that are read from now on."""
    found: list[int] = []
    read_group = PromptFile._read_group

    def noted(self: PromptFile, group: int, columns: list[str] | None = None) -> object:
        found.append(group)
        return read_group(self, group, columns)

    monkeypatch.setattr(PromptFile, "_read_group", noted)
    return PromptFile(path), found


def test_prompts_in_any_order_cost_one_reading_of_each_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, found = reads(path, monkeypatch)
    rows = Random(0).sample(range(ROWS), 500)
    assert [file[row] for row in rows] == [prompt(row) for row in rows]
    assert sorted(found) == list(range(20))


def test_no_more_than_the_limit_is_kept_of_a_large_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = PromptFile(path)._file.metadata
    largest = max(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    monkeypatch.setattr(prompt_files, "KEPT_BYTES", 3 * largest)
    file, found = reads(path, monkeypatch)
    starts = [group * GROUP_ROWS for group in (0, 1, 2, 0, 3, 4, 5, 0)]
    assert [file[row] for row in starts] == [prompt(row) for row in starts]
    assert found == [0, 1, 2, 3, 4, 5, 0], "three are kept"
