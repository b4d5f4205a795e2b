"""Keys of rows that a spec does not use: named by `yatt check`, because a key that is left out in silence may be missed.

Consumes a spec and the first prompts of each source. Produces names of keys. A function of the user's own may read any key of a
row; those that built-in functions read are named by their options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from yatt_core.datasets.questions import prompt_keys
from yatt_core.prompts.keys import column_of
from yatt_core.prompts.prompt import Prompt
from yatt_core.spec import RunSpec
from yatt_core.spec.objective import KtoObjective, SftObjective
from yatt_core.spec.sections.data import FileSource


def unused_keys(spec: RunSpec, prompts: Sequence[Prompt]) -> dict[int, tuple[str, ...]]:
    """Returns the unused keys of each source that has any, by the source's number, in the order of the rows.

    prompts: the first prompts of each source.
    """
    unused: dict[int, tuple[str, ...]] = {}
    for number, source in enumerate(spec.data.sources):
        if not isinstance(source, FileSource):
            continue
        columns = list(dict.fromkeys(key for prompt in prompts if prompt.source == number for key in prompt.entry))
        used = {column_of(key, columns) for key in _named(spec, source, columns)}
        if left := tuple(column for column in columns if column not in used):
            unused[number] = left
    return unused


def _named(spec: RunSpec, source: FileSource, columns: Collection[str]) -> Iterator[str]:
    """Yields the keys that the spec names for a source."""
    yield from prompt_keys(source)
    yield source.answer_field
    yield from (key for key in (source.system_field, source.tools_field, source.image_field) if key is not None)
    if not spec.samples_responses and not isinstance(spec.objective, SftObjective | KtoObjective):
        yield source.chosen_field
        yield source.rejected_field
    if isinstance(spec.objective, KtoObjective):
        yield source.label_field
    if spec.data.curriculum is not None and spec.data.curriculum.field is not None:
        yield spec.data.curriculum.field
    for part in spec.rewards.functions:
        yield from (value for value in part.options.values() if isinstance(value, str) and column_of(value, columns))
        if part.function == "code_tests" and "tests" not in part.options:
            yield "tests"
