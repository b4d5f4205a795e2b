"""Keys of rows that a spec does not use: named by `yatt check`, because a key that is left out in silence may be missed.

Consumes a spec and the first prompts of each source. Produces names of keys. A function of the user's own may read any key of a
row; those that built-in functions read are named by their options.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from yatt_core.datasets.questions import prompt_keys
from yatt_core.prompts.conversations import is_conversation
from yatt_core.prompts.keys import column_of, value_at
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
        own = [prompt for prompt in prompts if prompt.source == number]
        columns = list(dict.fromkeys(key for prompt in own for key in prompt.entry))
        used = {column_of(key, columns) for key in _named(spec, source, columns)}
        if _reads_answers(spec, source, own):
            used.add(column_of(source.answer_field, columns))
        if left := tuple(column for column in columns if column not in used):
            unused[number] = left
    return unused


def _named(spec: RunSpec, source: FileSource, columns: Collection[str]) -> Iterator[str]:
    """Yields the keys that the spec names for a source."""
    has_prompt = source.prompt_field is not None or source.prompt_template is not None
    yield from (key for key in prompt_keys(source) if has_prompt or key != source.answer_field)
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


def _reads_answers(spec: RunSpec, source: FileSource, prompts: Sequence[Prompt]) -> bool:
    """Returns whether a run reads what its rows have under `answer_field`.

    Pairs have their responses elsewhere, and so have conversations that end with the response; tests of programs are no answers.
    """
    if isinstance(spec.objective, SftObjective | KtoObjective):
        return not all(_ends_with_reply(prompt, source) for prompt in prompts)
    if not spec.samples_responses:
        return False
    parts = spec.rewards.functions
    without_answers = bool(parts) and all(part.function == "code_tests" for part in parts)
    return not without_answers or bool(spec.rewards.judges) or spec.algorithm.distillation is not None


def _ends_with_reply(prompt: Prompt, source: FileSource) -> bool:
    """Returns whether the response is the end of the prompt's conversation, and not under a key of its own."""
    elsewhere = is_conversation(value_at(prompt.entry, source.answer_field))
    return bool(prompt.reply) and not elsewhere and source.dialogue is None
