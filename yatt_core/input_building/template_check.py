"""Checks that a model's chat template shows the questions of the first prompts, asks for a reply, and leads to readable calls.

Consumes a spec. Raises `ConfigurationError` for a template that leaves out questions, cuts them or makes different ones alike:
the model would learn to answer what it has never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jinja2 import TemplateError

from yatt_core.datasets.sources import first_prompts
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.input_building.fitting import FIRST_PROMPTS
from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.control_text import IN_ITS_PLACE, MARK
from yatt_core.prompts.message_forms import USER
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import GivenFolder

SHOWN = 200
"""Characters of a rendered prompt in a message."""


def check_template(spec: RunSpec) -> None:
    """Raises `ConfigurationError` if the chat template of the spec's model does not show the questions."""
    codec = template_codec(spec)
    if codec is None:
        return
    prompts = [
        prompt
        for prompt in first_prompts(spec.data, spec.seed, FIRST_PROMPTS)
        if not (prompt.rendered or prompt.is_text_alone or prompt.media)
    ]
    fault = _fault(codec, prompts)
    if fault:
        assert isinstance(spec.model, GivenFolder)
        raise ConfigurationError(
            f"model.path: {spec.model.path}: its chat template {fault}; correct it (chat_template.jinja, or chat_template in "
            "tokenizer_config.json)"
        )


def unread_calls(spec: RunSpec) -> Iterator[str]:
    """Yields why the calls of tools to which the chat template of the spec's model leads cannot be read, beginning with the key.

    A folder, a template or rows that cannot be read are passed over.
    """
    if spec.rollout.tools is None or spec.virtual or not isinstance(spec.model, GivenFolder):
        return
    try:
        codec = template_codec(spec)
        prompts = first_prompts(spec.data, spec.seed, FIRST_PROMPTS)
        texts = (text for prompt in prompts for text in _texts_of(prompt, answered=spec.sft is not None))
        said = "" if codec is None else codec.unread_calls(texts)
    except (ConfigurationError, DataError, TemplateError):  # said where they are checked
        return
    if said:
        yield f"rollout.tools: {said} (model.path: {spec.model.path})"


def _texts_of(prompt: Prompt, answered: bool) -> Iterator[str]:
    """Yields what a model reads of a prompt. answered: whether it learns the reference answer."""
    yield prompt.text
    yield from (message.content for message in prompt.messages)
    if answered and prompt.answer is not None:
        yield prompt.answer


def template_codec(spec: RunSpec) -> PromptCodec | None:
    """Returns the codec of a given model; None for a run without one, whose template is YATT's own."""
    if spec.virtual or not isinstance(spec.model, GivenFolder):
        return None
    codec = open_codec(spec, str(Path(spec.model.path).resolve()), roomless=True)
    return codec if isinstance(codec, PromptCodec) else None


def _fault(codec: PromptCodec, prompts: Sequence[Prompt]) -> str:
    """Returns what a template does to the questions of prompts; empty if it shows them all."""
    rendered = dict[str, Prompt]()
    hidden = list[tuple[Prompt, str]]()
    alike = ""
    for prompt in prompts:
        try:
            shown = codec.shown(prompt)
        except DataError:  # what a template rejects is reported with the lengths of the prompts
            continue
        if _squeezed(_question(prompt)) not in _squeezed(shown):
            hidden.append((prompt, shown))
        other = rendered.setdefault(shown, prompt)
        if not alike and _squeezed(other.text) != _squeezed(prompt.text):
            alike = f"renders different prompts alike: {other.prompt_id} and {prompt.prompt_id} are read as {shown!r:.{SHOWN}}"
    if hidden:
        prompt, shown = hidden[0]
        return (
            f"leaves out the question or a part of it in {len(hidden):,} of the first {len(prompts):,} prompts: "
            f"{_question(prompt)!r:.{SHOWN}} of {prompt.prompt_id} is not in what the model reads, {shown!r:.{SHOWN}}"
        )
    return alike


def _question(prompt: Prompt) -> str:
    """Returns the last text of the user; empty if there is none."""
    if not prompt.messages:
        return prompt.text
    return next((message.content for message in reversed(prompt.messages) if message.role == USER), "")


def _squeezed(text: str) -> str:
    """Returns a text without white space, which many templates change, and without the marks of guarded texts."""
    return "".join(text.replace(MARK, "").replace(IN_ITS_PLACE, "").split())
