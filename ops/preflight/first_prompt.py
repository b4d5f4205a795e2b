"""The first training prompt as the model reads it, and what is learnt of its row: what `yatt check` shows a person.

Consumes the inputs that a check has built. Produces texts with the control tokens in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from yatt_core.prompts.codec import open_codec
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.prompt_codec import PromptCodec
from yatt_core.prompts.rows import EncodedResponse, encode_response, responses_of
from yatt_core.spec import RunSpec
from yatt_core.spec.objective import RewardModelObjective


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """A prompt as the model reads it.

    text: what the model reads before it writes.
    learnt: what of each response is learnt, in the pieces that it consists of, the preferred response of a pair first; empty
        for a run that samples.
    avoided: whether the response is one that the model learns not to write.
    """

    prompt_id: str
    text: str
    learnt: tuple[tuple[str, ...], ...] = ()
    avoided: bool = False


def first_prompt(spec: RunSpec, model_path: str, prompt: Prompt) -> FirstPrompt | None:
    """Returns a prompt as the model reads it; None in a virtual run, which has no model.

    model_path: as for `open_codec`.
    """
    codec = open_codec(spec, model_path, roomless=True)
    if not isinstance(codec, PromptCodec):
        return None
    if spec.samples_responses:
        return FirstPrompt(prompt.prompt_id, codec.shown(prompt))
    responses = responses_of(spec, prompt)
    encoded = [encode_response(spec, codec, prompt, reply) for reply in responses.replies]
    text = codec.tokenizer.decode(encoded[0].prompt)
    if isinstance(spec.objective, RewardModelObjective):
        return FirstPrompt(prompt.prompt_id, text)
    return FirstPrompt(prompt.prompt_id, text, tuple(_pieces(codec, each) for each in encoded), not responses.desirable)


def _pieces(codec: PromptCodec, encoded: EncodedResponse) -> tuple[str, ...]:
    """Returns the texts of a response that are learnt, without what stands between them."""
    changes = np.flatnonzero(np.diff(encoded.learnt)) + 1
    tokens = np.split(encoded.response, changes)
    counts = np.split(encoded.learnt, changes)
    return tuple(str(codec.tokenizer.decode(piece)) for piece, learnt in zip(tokens, counts, strict=True) if learnt[0])
