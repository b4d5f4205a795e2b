"""Sources that are functions: read like files, vouched for by their source, and refused with their place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from yatt_core.datasets.rows import read_rows
from yatt_core.datasets.sources import collect_prompts, look_over
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.spec import RunSpec, spec_of_tree
from yatt_core.spec.sections.data import FileSource

SOURCE = """
def rows(split, count=30, broken=0):
    first = 1000 if split == "held_out" else 0
    for number in range(first, first + count):
        if number == broken - 1:
            yield {"prompt": object()}
        yield {"prompt": f"What follows {number}?", "answer": str(number + 1), "hard": number > 5}

def fails(split):
    yield {"prompt": "first"}
    raise OSError("the server is gone")

def exits(split):
    yield {"prompt": "first"}
    raise SystemExit("no rows")

def pictures(split):
    for number in range(20):
        yield {"prompt": f"What is on {number}?", "answer": number + 0.5, "more": {"image": b"bytes", "level": 1}}

def lists(split):
    return [["not", "a", "mapping"]]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yields the name of an importable module with sources."""
    (tmp_path / "my_rows.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_rows"
    sys.modules.pop("my_rows", None)


def spec_of(function: str, **source: object) -> RunSpec:
    data = {"sources": [{"kind": "function", "function": function, **source}], "held_out": 4, "probe": 3}
    rewards = {"parts": [{"name": "right", "function": "exact_match"}]}
    return spec_of_tree({"name": "own", "data": data, "rewards": rewards}, "spec", Path())


def test_rows_become_prompts_as_those_of_files_do(module: str) -> None:
    data = spec_of(f"{module}:rows", options={"count": 20}).data
    assert data.source_names == ("rows",)
    found = collect_prompts(data, 0)
    assert [prompt.text for prompt in found.held_out] == [f"What follows {number}?" for number in (19, 18, 17, 16)]
    train = list(found.train[0])
    assert len(train) == 20 - 4 - 3 and train == list(found.train[0]), "each pass reads the same rows"
    assert (
        train[0].prompt_id == f"0/train/{module}:rows:4" and train[0].answer == "4" and train[0].entry["hard"] is False
    )
    assert look_over(data, 0)


def test_held_out_rows_of_its_own(module: str) -> None:
    found = collect_prompts(spec_of(f"{module}:rows", held_out_rows=True).data, 0)
    assert found.held_out[0].text == "What follows 1000?" and len(list(found.train[0])) == 30 - 3


def test_the_spec_stands_for_the_source_that_it_was_read_with(module: str, tmp_path: Path) -> None:
    spec = spec_of(f"{module}:rows")
    (source,) = spec.data.sources
    assert source.kind == "function" and source.sha256 is not None
    (tmp_path / "my_rows.py").write_text(SOURCE + "\n# changed\n")
    with pytest.raises(ConfigurationError, match=r"the source of my_rows:rows has changed"):
        look_over(spec.data, 0)
    assert spec_of(f"{module}:rows").digest != spec.digest


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        ("rows", {"broken": 3}, DataError, r"my_rows:rows:3: Object of type object"),
        ("fails", {}, ConfigurationError, r"my_rows:fails failed: .*my_rows.py:\d+: OSError: the server is gone"),
        ("exits", {}, ConfigurationError, r"my_rows:exits failed: .*my_rows.py:\d+: SystemExit: no rows"),
        ("lists", {}, DataError, r"my_rows:lists:1: the row is list"),
        ("rows", {"number": 3}, ConfigurationError, r"my_rows:rows failed: .*TypeError"),
    ],
)
def test_rows_that_cannot_be_used_are_named(
    module: str, function: str, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        look_over(spec_of(f"{module}:{function}", options=options).data, 0)


def test_an_unknown_function_is_refused_when_the_spec_is_read(module: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"data\.sources function: 'nowhere:rows'.*no Python file of a module 'nowhere'"
    ):
        spec_of("nowhere:rows")
    with pytest.raises(ConfigurationError, match="did you mean 'rows'"):
        look_over(spec_of(f"{module}:row").data, 0)


def test_images_below_a_key_are_bytes_too(module: str) -> None:
    (plain,) = spec_of(f"{module}:pictures").data.sources
    source = plain.model_copy(update={"image_field": "more.image"})
    assert isinstance(source, FileSource)
    row = next(read_rows(source, "train", lambda data, place: data.decode()))
    assert (row.media, row.answer, row.entry["more"]) == (("bytes",), "0.5", {"level": 1})
