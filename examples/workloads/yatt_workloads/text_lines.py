"""Lines of a text file that somebody else has written, each with its place.

Consumes the path of a file. Produces its lines as text; a `ValueError` names the file, and the line, of what is no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from yatt_workloads.given_files import readable

LONGEST = 2**24
"""Bytes of a line; a longer one is no record of a corpus, and would fill the memory before anything else could refuse it."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the place of each line, `file:number`, and its text without what ends it. The last line may lack its end.

    Raises `ValueError` for a file that cannot be read, and for a line that is empty, too long or not UTF-8.
    """
    with readable(path), path.open("rb") as stream:
        for number in count(1):
            line = stream.readline(LONGEST + 1)
            if not line:
                return
            yield f"{path}:{number}", _text_of(line, f"{path}:{number}")


def _text_of(line: bytes, place: str) -> str:
    if len(line) > LONGEST:
        raise ValueError(f"{place}: has more than {LONGEST} bytes; expected a shorter line")
    if line.startswith(BYTE_ORDER_MARK):
        raise ValueError(f"{place}: begins with a byte order mark; expected UTF-8 without one")
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{place}: is not UTF-8: {error}") from error
    if not text:
        raise ValueError(f"{place}: is an empty line; expected none, also at the end of the file")
    return text
