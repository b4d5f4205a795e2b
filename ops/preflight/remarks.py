"""What works but may not be intended: said before a run starts, never an error. Consumes a spec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from yatt_core.input_building.engine_check import folder_remarks
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.model import ModelFolder


def remarks(spec: RunSpec) -> list[str]:
    """Returns a line for each; raises `ConfigurationError` if the tokenizer of a given model cannot be loaded."""
    return [*_uneven(spec), *_tokenizer(spec), *folder_remarks(spec)]


def _uneven(spec: RunSpec) -> Iterator[str]:
    prompts = spec.data.prompts_per_iteration
    section = "algorithm" if spec.objective is None else "objective"
    divided = [(f"{section}.mini_batches", spec.mini_batches)]
    divided += [("data.logical_shards", spec.shards)] if spec.samples_responses else []
    for key, parts in divided:
        if prompts % parts:
            least = prompts // parts
            yield (
                f"{key}: {parts} does not divide data.prompts_per_iteration {prompts}; the parts get {least} or "
                f"{least + 1} prompts"
            )


def _tokenizer(spec: RunSpec) -> Iterator[str]:
    if spec.virtual or not isinstance(spec.model, ModelFolder):
        return
    tokenizer = load_tokenizer(Path(spec.model.path))
    if tokenizer.chat_template is None:
        yield (
            "model.path: the tokenizer has no chat template, so the model receives prompts as plain text; that suits "
            "a base model, but an instruction-tuned model expects its template (chat_template.jinja)"
        )
    if tokenizer.pad_token_id is None:
        yield "model.path: the tokenizer has no padding token; YATT needs none, because padding is masked everywhere"
