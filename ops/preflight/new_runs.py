"""What is refused of new runs alone, because runs of earlier versions have it and go on.

Consumes a spec and the small files of its models' folders. Produces one line for each mistake, which begins with its key.
"""

from __future__ import annotations

from yatt_core.spec import RunSpec
from yatt_core.spec.combinations import refusals
from yatt_core.spec.sections.model import ModelFromConfig
from yatt_core.spec.weights import refused_transport


def refused_since(spec: RunSpec) -> list[str]:
    """Returns why a new run cannot have a spec that earlier versions accepted; empty if it can.

    A folder that cannot be read is passed over: other checks say what is wrong with it.
    """
    from yatt_core.input_building.engine_check import small_batches
    from yatt_core.input_building.template_check import unread_calls

    lines = [*refusals(spec, "new_runs"), *refused_transport(spec)]
    if isinstance(spec.model, ModelFromConfig) and spec.model.architecture == "qwen2" and spec.model.vision is None:
        lines.append(
            "model.architecture: transformers 5 reads the tokenizer of a folder made from a qwen2 config as Qwen2Tokenizer, so "
            "that the trained model would get other tokens everywhere else; expected qwen3 or llama"
        )
    return [*lines, *small_batches(spec), *unread_calls(spec)]
