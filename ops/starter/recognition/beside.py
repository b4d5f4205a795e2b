"""Columns beside a question that it may be about: a question about something that the model is not shown has no right answer.

Consumes a table and the key of the question. Raises `ConfigurationError` for such columns, in a form or a place that is not
known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ops.starter.recognition.table import MOST_OF, Table, parsed, value_of
from yatt_core.errors import ConfigurationError

SOURCES = (
    "paragraphs", "passages", "documents", "docs", "articles", "contexts", "ctxs", "evidences", "snippets", "schema",
    "db_schema", "database_schema", "sql_schema", "sql_context", "create_table", "tables",
)  # fmt: skip
"""Keys of what is looked up to answer a question."""
BESIDE = (
    "history", "sentence", "sentence1", "sentence2", "premise", "hypothesis", "text", "content", "excerpt", "table",
    *SOURCES,
)  # fmt: skip
"""Keys of what a question may be about, in a form and a place that are not known."""
WHOLE = ("text", "content")
"""Keys among these of a whole example, in which the question is a part."""
TASKS = ("instruction", "instructions", "question")
"""Keys of what else a prompt may say, such as what to do with a question."""
CODE = ("code", "program", "function", "code_snippet", "source_code")
"""Keys of code that a question, or an `input`, may be about; beside tests, it is a solution."""


def refuse_beside(table: Table, question: str, solved: bool) -> None:
    """Raises `ConfigurationError` for rows that have something else that their questions may be about.

    solved: whether code beside the question is its solution.
    """
    others = (*BESIDE, *TASKS, *(() if solved else CODE))
    for key in table.all(*others):
        rows = [(value_of(row, key), str(value_of(row, question))) for row in table.rows if value_of(row, key)]
        whole = key.strip().lower() in WHOLE
        shown = sum(1 for value, text in rows if _is_shown(value, text) or (whole and text in str(value)))
        if key != question and rows and shown < MOST_OF * len(rows):
            raise ConfigurationError(
                f"it is not clear whether the prompts under {question!r} are about {key!r}; name a key that has both with "
                f"--prompt-field (--prompt-field {question} leaves {key!r} out)"
            )


def _is_shown(value: Any, text: str) -> bool:
    """Returns whether a question has all texts of a value already."""
    texts = list(_texts_in(parsed(value)))
    return bool(texts) and all(one in text for one in texts)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, Sequence)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(one)
    elif value is not None:
        yield str(value)
