"""Lines of somebody else's files: each has its place, and what is no text is refused by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from yatt_workloads import text_lines
from yatt_workloads.text_lines import lines_of


def test_lines_have_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("ä\r\nb\u2028c".encode())
    assert list(lines_of(path)) == [(f"{path}:1", "ä"), (f"{path}:2", "b\u2028c")]
    path.write_bytes(b"a\n")
    assert list(lines_of(path)) == [(f"{path}:1", "a")], "the end of the last line begins no other"


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"a\n\xff\xfe\n", r"a.txt:2: is not UTF-8: .*0xff"),
        (b"a\n\xed\xa0\x80\n", r"a.txt:2: is not UTF-8"),
        (b"\xef\xbb\xbfa\n", r"a.txt:1: begins with a byte order mark"),
        (b"a\n\nb\n", r"a.txt:2: is an empty line; expected none"),
        (b"a\r\n\r\n", r"a.txt:2: is an empty line; expected none, also at the end of the file"),
        (b"a\nb\n" + b"c" * 101 + b"\n", r"a.txt:3: has more than 100 bytes; expected a shorter line"),
    ],
)
def test_what_is_no_text_is_refused(
    contents: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_lines, "LONGEST", 100)
    path = tmp_path / "a.txt"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=said):
        list(lines_of(path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("none", "no such file"), ("pipe", "is no regular file"), ("..", "is no regular file")):
        with pytest.raises(ValueError) as refused:
            list(lines_of(tmp_path / name))
        assert str(refused.value) == f"{tmp_path / name}: {said}"
