"""What works but may not be intended: said before a run starts, never an error. Consumes a spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ops.preflight.exactness import Exactness
from yatt_core.counting import many
from yatt_core.input_building.engine_check import folder_remarks
from yatt_core.input_building.template_check import template_codec
from yatt_core.models.tokenizer import IMAGE, load_tokenizer
from yatt_core.prompts.prompt import Prompt
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.model import GivenFolder, ModelFromConfig


def remarks(spec: RunSpec) -> list[str]:
    """Returns a line for each; raises `ConfigurationError` if the tokenizer of a given model cannot be loaded."""
    said = [*_inexact(spec), *_uneven(spec), *_deadline(spec), *_uncorrected_lag(spec), *_single_shard(spec)]
    return [*said, *_random_weights(spec), *_tokenizer(spec), *folder_remarks(spec)]


def spelled_control_tokens(spec: RunSpec, prompts: Sequence[Prompt]) -> Iterator[str]:
    """Yields a line for each source whose first prompts spell control tokens of the model, as rendered ones do.

    prompts: the first prompts of each source.
    """
    if spec.virtual or not isinstance(spec.model, GivenFolder):
        return
    tokenizer = load_tokenizer(Path(spec.model.path))
    special = sorted(str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special)
    special = [text for text in special if len(text) > 1 and text != IMAGE]
    for number in range(len(spec.data.sources)):
        texts = [prompt.text for prompt in prompts if prompt.source == number and not prompt.rendered]
        spelled = next((text for text in special if any(text in each for each in texts)), None)
        if spelled is not None:
            yield (
                f"data.sources.{number}: prompts spell the model's control token {spelled!r}, which is encoded as text; if "
                "they are what the model reads, with a chat template around them already, set rendered: true"
            )


def _inexact(spec: RunSpec) -> Iterator[str]:
    """Yields why a run that is to be exact where that is possible will not be."""
    obstacles = Exactness.of(spec).obstacles
    if obstacles and spec.exact == "auto":
        yield (
            f"exact: auto: the run will not be exact, because {'; '.join(obstacles)}. What is durable is kept all the same; "
            "exact: true refuses such a spec, exact: false accepts it without this line"
        )


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


def _deadline(spec: RunSpec) -> Iterator[str]:
    deadline = spec.guards.deadline
    if deadline is not None and deadline.at is not None and deadline.at <= datetime.now(UTC):
        yield f"guards.deadline.at: {deadline.at.isoformat()} has passed already; the run will {deadline.action} at once"


BREAKING_LAG = 3
"""Updates by which weights may be old before a loss that nothing clips breaks."""


def _uncorrected_lag(spec: RunSpec) -> Iterator[str]:
    """Yields a remark on a lag that the loss knows nothing of: its ratios are to the trainer's own weights, not the sampler's."""
    algorithm = spec.algorithm
    lag = spec.version_span
    key = spec.sliced_by or "asynchrony.lag"
    breaks = f"; from a lag of {BREAKING_LAG} on training breaks without" if lag >= BREAKING_LAG else ""
    if lag and spec.objective is None and algorithm.importance_correction is None and algorithm.off_policy_mask is None:
        yield (
            f"{key}: samples are drawn under weights that are up to {many(lag, 'update')} old, and nothing weighs "
            f"or masks them accordingly, so that nothing clips the loss{breaks}; set algorithm.importance_correction, "
            "for example {kind: truncate, cap: 2.0}"
        )


def _single_shard(spec: RunSpec) -> Iterator[str]:
    """Yields a remark on streamed learning that can begin only when everything is generated."""
    if spec.asynchrony.streamed and spec.shards == 1:
        yield (
            "asynchrony.streamed: an iteration has a single logical shard, which the trainer gets once everything is generated; "
            "raise data.logical_shards, to 8 or more"
        )


def _random_weights(spec: RunSpec) -> Iterator[str]:
    """Yields a remark on a policy of random weights without demonstrations: it hardly ever earns a reward to learn from."""
    if isinstance(spec.model, ModelFromConfig) and not spec.virtual and spec.samples_responses and spec.sft is None:
        yield (
            "model: from_config begins with random weights, which cannot answer anything, and sft is null: rewards will hardly "
            "differ, so that little is learnt; set sft, or a model that is trained (model: {path: FOLDER})"
        )


def _tokenizer(spec: RunSpec) -> Iterator[str]:
    if spec.virtual or not isinstance(spec.model, GivenFolder):
        return
    tokenizer = load_tokenizer(Path(spec.model.path))
    if tokenizer.chat_template is None:
        yield (
            "model.path: the tokenizer has no chat template, so the model receives prompts as plain text; that suits "
            "a base model, but an instruction-tuned model expects its template (chat_template.jinja)"
        )
    codec = template_codec(spec)
    if codec is not None and codec.missing_opening:
        yield (
            "model.path: the chat template does not begin the assistant's turn at the end of a prompt "
            f"(add_generation_prompt): the model has to write {codec.missing_opening!r} itself before it answers"
        )
    if tokenizer.pad_token_id is None:
        yield "model.path: the tokenizer has no padding token; YATT needs none, because padding is masked everywhere"
