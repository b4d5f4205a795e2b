"""How many tokens prompts and responses have in the first rows, for sizes that fit them.

Consumes an understanding and a model. Produces numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ops.starter.looks import LOOKED_AT, ModelLook, source_tree
from ops.starter.understanding import Understanding
from yatt_core.datasets.data_files import held_out_files
from yatt_core.datasets.sources import all_tasks, first_prompts
from yatt_core.errors import TooLongError
from yatt_core.prompts.codec import encode_question, open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.rows import responses_of
from yatt_core.spec import RunSpec
from yatt_core.spec.reading.load import parse_spec
from yatt_core.spec.sections.data import FileSource


def longest_tokens(understanding: Understanding, name: str, model: ModelLook) -> tuple[int, int]:
    """Returns the numbers of tokens of the longest of the first prompts and responses, as a run encodes them.

    A prompt has at most the model's positions. The second number is 0 for a run that samples.
    """
    spec = _provisional(understanding, name, model)
    codec = open_codec(spec, str(model.path))
    prompts = [0]
    responses = [0]
    for prompt in _prompts(spec):
        try:
            prompts.append(len(encode_question(prompt, codec)))
        except TooLongError:
            prompts.append(model.positions or 0)
        if not understanding.samples:
            replies = responses_of(spec, prompt).replies
            responses += [len(codec.encode_reply(prompt, reply).tokens) for reply in replies]
    return max(prompts), max(responses)


def _prompts(spec: RunSpec) -> Iterator[Prompt]:
    """Yields the first prompts of each source, and the first that are held out."""
    yield from first_prompts(spec.data, spec.seed, LOOKED_AT)
    for number, source in enumerate(spec.data.sources):
        if isinstance(source, FileSource) and held_out_files(source):
            yield from all_tasks(source, number, LOOKED_AT)


def _provisional(understanding: Understanding, name: str, model: ModelLook) -> RunSpec:
    """Returns a spec that allows prompts of any length, with which prompts can be encoded."""
    tree: dict[str, Any] = {
        "name": name,
        "model": {"kind": "folder", "path": str(model.path.resolve())},
        "data": {
            "sources": [
                source_tree(source.look.place, {**source.held_out, **source.recognised.source})
                for source in understanding.sources
            ],
            "system_prompt": understanding.system_prompt,
            "probe": 0,
            "max_prompt_tokens": 1 << 30,
        },
        "rollout": {"max_new_tokens": 1},
    }
    if understanding.samples:
        tree["rewards"] = {"parts": [{"name": "correct", "function": "exact_match"}]}
    else:
        tree["objective"] = {"kind": understanding.objective.value}
    return parse_spec(tree, "yatt init")
