"""Each table of the ledger has a row in docs/formats.md, and no row names a table that does not exist."""

from __future__ import annotations

import re

import db.ledger  # noqa: F401  (loads the models of every table)
from db.core.base import Base
from tests.services import ROOT


def test_formats_names_each_table_of_the_ledger() -> None:
    section = re.search(r"^## The ledger\n(.*?)^## ", (ROOT / "docs" / "formats.md").read_text(), re.M | re.S)
    assert section is not None
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section[1], re.M)
    named = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(named) == sorted(Base.metadata.tables)
