"""A peer's limit on prompt and response together, as the limits that YATT has on each of them.

Consumes a draft, and options with what is known of model and rows. Writes into the draft. Raises `ConfigurationError`.

A reward model reads both as one text, whose limit is the sum of YATT's. For other runs a prompt has the positions that the
longest response leaves, so that each can have the whole limit only if the model has twice as many positions.
"""

from __future__ import annotations

import math

from ops.starter.peers.draft import Draft
from ops.starter.peers.places import TranslationOptions

PROMPT = "data.max_prompt_tokens"
RESPONSE = "rollout.max_new_tokens"
TOGETHER = "it is the limit of prompt and response together"
UNLIMITED = "no limit there but the model's positions"


def total_length(draft: Draft, options: TranslationOptions, key: str, what: str) -> None:
    """Writes the limits that are closest to one on prompt and response together.

    what: says in words what the peer does with a row beyond it.
    """
    positions = math.inf if options.positions is None else options.positions
    if draft[key] is None and math.isinf(positions):
        draft.differs(key, "no limit; YATT has limits, so that memory can be planned")
        return
    if draft[key] is None:
        limit = int(positions)
        begin = UNLIMITED
    else:
        limit = draft.number(key, 1)
        begin = f"{TOGETHER}, and {what}"
    if draft.tree.get("objective", {}).get("kind") == "reward_model":
        limit = int(min(limit, positions))
        why = f"{begin}; here it is the sum of both, and a row beyond it is refused"
        draft.differs(key, why, {PROMPT: max(1, limit - limit // 2), RESPONSE: max(1, limit // 2)})
        return
    if 2 * limit <= positions:
        unknown = (
            "" if options.positions is not None else "; both share the model's positions, which are not known here"
        )
        why = f"{begin}; here each of them has it, and a row beyond it is refused{unknown}"
        draft.differs(key, why, {PROMPT: limit, RESPONSE: limit})
        return
    longest = options.longest()
    prompt, response = _divided(int(positions), limit, longest, samples="objective" not in draft.tree)
    by = "in halves" if longest is None else "by the longest of the first rows"
    why = f"{begin}; here they share the model's {int(positions):,} positions {by}, and a row beyond is refused"
    draft.differs(key, why, {PROMPT: prompt, RESPONSE: response})


def _divided(positions: int, limit: int, longest: tuple[int, int] | None, samples: bool) -> tuple[int, int]:
    """Returns the limits of prompt and response that together are the model's positions, neither above the peer's limit.

    longest: tokens of the longest prompt and response; None if they are not known.
    samples: whether responses are sampled, so that they get what prompts leave.
    """
    half = positions // 2
    if longest is None:
        response = half
    elif samples:
        response = positions - min(half, longest[0] + longest[0] // 4)
    elif sum(longest) <= positions:
        response = longest[1] + (positions - sum(longest)) // 2
    else:
        response = positions * longest[1] // sum(longest)
    response = max(1, positions - limit, min(response, limit, positions - 1))
    return max(1, min(positions - response, limit)), response
