"""What prevents a trainer from computing a sampler's log-probabilities to the last bit. Pure; consumes a spec's sections."""

from __future__ import annotations

from collections.abc import Iterator

from yatt_core.spec.features import SpecSections
from yatt_core.spec.sections.rollout import TorchRollout
from yatt_core.spec.sections.trainer import TorchTrainer


def aligned_obstacles(spec: SpecSections) -> list[str]:
    """Returns the settings of a spec with which `exact: aligned` cannot hold, each with what it needs; empty if it can.

    What the model's folder or the device excludes is said where these are read.
    """
    if not spec.samples_responses or spec.objective is not None:
        return ["the run has no policy gradient, in which sampler and trainer would be compared"]
    return [*_engines(spec), *_sampling(spec), *_order(spec)]


def _engines(spec: SpecSections) -> Iterator[str]:
    """Yields what is wrong with the engines, their types and their kernels."""
    sampler = spec.rollout.engine
    trainer = spec.trainer.engine
    if not isinstance(sampler, TorchRollout):
        yield f"rollout.engine.kind is {sampler.kind}, but it needs torch"
    if not isinstance(trainer, TorchTrainer):
        yield f"trainer.engine.kind is {trainer.kind}, but it needs torch"
    if isinstance(sampler, TorchRollout) and isinstance(trainer, TorchTrainer):
        if sampler.dtype != trainer.dtype:
            yield f"rollout.engine.dtype is {sampler.dtype} and trainer.engine.dtype {trainer.dtype}, but it needs the same"
        if sampler.continuous:
            yield "rollout.engine.continuous is true, but it needs planned decode batches, so false"
        for key, kernels in (("rollout", sampler.kernels), ("trainer", trainer.kernels)):
            if kernels == "general":
                yield f"{key}.engine.kernels is general, but it needs auto"
    if spec.trainer.lora is not None:
        yield "trainer.lora: merged adapters round otherwise than adapters beside their matrix, so it needs null"
    if spec.data.has_images:
        yield "a source in data.sources has an image_field, but it needs prompts of text alone"


def _sampling(spec: SpecSections) -> Iterator[str]:
    """Yields the settings under which tokens are drawn from another distribution than the trainer's."""
    rollout = spec.rollout
    plain = {"top_p": 1.0, "top_k": None, "min_p": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
    for name, expected in plain.items():
        if (given := getattr(rollout, name)) != expected:
            needed = "null" if expected is None else expected
            yield f"rollout.{name} is {given}, so tokens are not drawn from the model's own distribution; it needs {needed}"


def _order(spec: SpecSections) -> Iterator[str]:
    """Yields the settings under which a response is not drawn whole, under the weights that learn from it."""
    if spec.rollout.tools is not None:
        yield "rollout.tools: a later turn reads the earlier ones as its prompt, so it needs null"
    parts = {
        "rollout.slice_tokens": spec.rollout.slice_tokens,
        "rollout.tail": spec.rollout.tail,
        "dynamic_sampling.overdispatch": spec.dynamic_sampling.overdispatch,
    }
    for key, given in parts.items():
        if given is not None:
            yield f"{key}: what goes on in a later iteration is drawn under different weights, so it needs null"
    if spec.asynchrony.lag:
        yield f"asynchrony.lag is {spec.asynchrony.lag}: responses are drawn under earlier weights, so it needs 0"
    if spec.asynchrony.streamed:
        yield "asynchrony.streamed: gradients are summed before all of an iteration is compared, so it needs false"
