"""JSON files that are not one object a line give the same rows, within bounded memory, and say what is wrong where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.datasets.reading import read_json
from yatt_core.datasets.limits import MAX_ROW_BYTES
from yatt_core.errors import DataError

ROWS = [
    {"prompt": f"What is {number}?", "answer": str(number), "tags": ["é", {"deep": [number]}]} for number in range(40)
]


def lines(rows: list[Any], **options: Any) -> str:
    return "\n".join(json.dumps(row, **options) for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        lines(ROWS),
        "\n \n" + lines(ROWS, ensure_ascii=False) + "\n\n",
        lines(ROWS).replace("\n", "\r\n"),
        json.dumps(ROWS),
        "  \n" + json.dumps(ROWS, indent=2),
        "[\n" + ",\n".join(json.dumps(row) for row in ROWS) + "\n]\n",
        json.dumps({"data": ROWS}),
        json.dumps({"version": "1.0", "info": {"by": "me"}, "tags": ["a"], "train": ROWS, "count": 40}, indent=1),
        lines(ROWS, indent=4),
        json.dumps({"schema": {"fields": [{"name": "prompt"}]}, "data": ROWS}),
        pd.DataFrame(ROWS).to_json(orient="records"),
        pd.DataFrame(ROWS).to_json(orient="records", lines=True),
    ],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_form_of_json_gives_the_same_rows(tmp_path: Path, text: str, mark: bytes) -> None:
    found = read_json(tmp_path / "a.json", mark + text.encode())
    assert [dict(row.entry) for row in found] == ROWS
    assert len({row.origin for row in found}) == len(ROWS)


def test_a_row_that_contains_a_list_of_objects_stays_a_row(tmp_path: Path) -> None:
    for text in ({"prompt": "a", "choices": [{"x": 1}]}, {"choices": [{"x": 1}, {"x": 2}], "prompt": "a"}):
        for indent in (None, 2):
            (row,) = read_json(tmp_path / "a.json", json.dumps(text, indent=indent))
            assert row.entry == text
    (row,) = read_json(
        tmp_path / "b.json",
        json.dumps({"messages": [{"role": "user", "content": "a"}], "answer": "b"}),
        prompt_field="messages",
    )
    assert (row.text, row.answer) == ("a", "b")
    (row,) = read_json(tmp_path / "c.json", '{"x": {"question": "a"}, "notes": [{"n": 1}]}', prompt_field="x.question")
    assert row.text == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"prompt": "a"},\n{"prompt": "b"},\n{"prompt": \n]', r"a\.json:3: is not JSON: .*\(line 4\)"),
        ('[{"prompt": "a"}, 5]', r"a\.json:2: expected a JSON object, not int"),
        ('[["prompt", "answer"], ["a", "b"]]', r"a\.json:1: expected a JSON object, not list; .*names of its columns"),
        ('[{"prompt": "a"}\n{"prompt": "b"}]', r"a\.json:2: expected ',' or '\]' at line 2"),
        ('[{"prompt": "a"},', r"a\.json:2: is not JSON"),
        ('[{"prompt": "a"}]\n[{"prompt": "b"}]', r"a\.json:2: is behind the end of the list \(line 2\)"),
        ('[{"prompt": "a", "x": NaN}]', r"a\.json:1: is not JSON: NaN is not a JSON value"),
        ('[{"prompt": "a"}, {"prompt": "\\ud800"}]', r"a\.json:2: .*surrogates not allowed"),
        ('[\n{"prompt": "a"},\n{"promt": "b"}]', r"a\.json:2: the row has no key 'prompt' .*did you mean 'promt'"),
        ("[]", r"a\.json: the file has no rows"),
        ('{\n"prompt": "a"\n}\n{\n"prompt"', r"a\.json:2: is not JSON: .*\(line 5\)"),
        (
            '{"train": [{"x": 1}], "test": [{"x": 2}]}',
            r"a\.json: has several lists of objects, train, test; .*file of its own",
        ),
        (pd.DataFrame(ROWS).to_json(), r"a\.json: is a table by column, as pandas.* default; .*lines=True"),
        (pd.DataFrame(ROWS).to_json(orient="index"), r'a\.json: .*orient="index"'),
        (pd.DataFrame(ROWS).to_json(orient="split"), r'a\.json: .*orient="split"'),
        (json.dumps({"prompt": ["a", "b"], "answer": ["1", "2"]}), r"a\.json: is an object of columns"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_json(tmp_path / "a.json", text)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.json:1: is not UTF-8"):
        read_json(tmp_path / "a.json", b'[{"prompt": "caf\xe9"}]')


def test_several_errors_of_a_list_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)a\.json:1: .*a\.json:3: "):
        read_json(tmp_path / "a.json", '[{"prompt": 1}, {"prompt": "a"}, 3]')


@pytest.mark.parametrize("container", ["list", "object"])
def test_a_large_list_needs_the_memory_of_a_row(tmp_path: Path, container: str) -> None:
    path = tmp_path / "a.json"
    count = 6 * MAX_ROW_BYTES // 1_000
    with path.open("w") as file:
        file.write("[" if container == "list" else '{"version": [1, 2], "rows": [')
        for number in range(count):
            file.write(f'{"," if number else ""}{{"prompt": "{number}", "answer": "{"x" * 1_000}"}}')
        file.write("]" if container == "list" else '], "count": 3}')
    program = (
        "import resource, sys\n"
        "from yatt_core.datasets.jsonl import read_objects\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "rows = sum(1 for _ in read_objects(__import__('pathlib').Path(sys.argv[1]), ['prompt']))\n"
        "print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    rows, used = map(int, shown.stdout.split())
    assert rows == count and used < 90_000, "kilobytes, of a file of 96 MiB"


@pytest.mark.parametrize("text", ['[{"prompt": "a"}, {"prompt": "%s"}]', '{"prompt": "%s"}'])
def test_a_row_of_a_document_has_a_bound(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=rf"a\.json:\d: is longer than {MAX_ROW_BYTES:,} bytes"):
        read_json(tmp_path / "a.json", text % ("x" * (MAX_ROW_BYTES + (1 << 21))))


@pytest.mark.parametrize("size", [0, MAX_ROW_BYTES // 1_000], ids=["small", "large"])
@pytest.mark.parametrize("opening", ["[", '{"rows": ['])
def test_a_mistake_in_a_document_of_any_size_is_named_with_its_line(tmp_path: Path, opening: str, size: int) -> None:
    rows = [f'{{"prompt": "{number}", "answer": "{"x" * 1_000}"}}' for number in range(size + 2)]
    text = ",\n".join([rows[0], '{"prompt": "bad" "answer": 1}', *rows[1:]])
    with pytest.raises(DataError, match=r"a\.json:\d: is not JSON: Expecting ',' delimiter \(line 2\)"):
        read_json(tmp_path / "a.json", opening + text + ("]" if opening == "[" else "]}"))


def test_documents_keep_numbers_as_they_are_written(tmp_path: Path) -> None:
    numbers = ("12345678901234567890123", "1e-3", "2.50")
    rows = [f'{{"prompt": "{number}", "answer": {number}}}' for number in numbers]
    for name, text in (("a.json", f"[{', '.join(rows)}]"), ("a.jsonl", "\n".join(rows))):
        found = read_json(tmp_path / name, text)
        assert tuple(row.answer for row in found) == numbers
        assert json.loads(json.dumps(found[1].entry))["answer"] == 0.001
