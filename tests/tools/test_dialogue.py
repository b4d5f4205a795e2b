"""Turns of a decode batch: which members continue, what the next turn is generated from, and where a response ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from yatt_core.prompts.tool_calls import ToolAnswer, ToolCall
from yatt_core.prompts.virtual_codec import VirtualCodec
from yatt_core.protocols.generation import FINISHED_LENGTH, FINISHED_STOP, GenerateResult, support_fields
from yatt_core.spec.sections.rollout import RolloutSpec
from yatt_core.tools.dialogue import Dialogue, greedy_request
from yatt_core.wire.support import Support

ROLLOUT = RolloutSpec.model_validate(
    {
        "engine": {"kind": "virtual"},
        "max_new_tokens": 6,
        "tools": {"functions": [{"name": "f", "function": "calculator"}], "max_turns": 2, "max_result_tokens": 3},
    }
)
CODEC = VirtualCodec(1000, 16, ROLLOUT.tools, tool_call_fraction=0.1)
"""A turn whose first token is below 100 is a call."""


def said(*turns: list[int], finish: int = FINISHED_STOP) -> GenerateResult:
    tokens = np.array([token for turn in turns for token in turn], np.int32)
    lengths = np.array([len(turn) for turn in turns], np.int32)
    log_probs = np.linspace(-2, -1, len(tokens)).astype(np.float32)
    return GenerateResult(tokens, log_probs, lengths, np.full(len(turns), finish, np.int8), 0, 0.0)


def test_members_that_call_a_tool_continue_with_its_result() -> None:
    prompts = [np.array([n], np.int32) for n in (901, 902, 903)]
    dialogue = Dialogue(ROLLOUT, CODEC, prompts)
    assert dialogue.members == (0, 1, 2)
    assert dialogue.limits().tolist() == [6, 6, 6]
    calls = dialogue.hear(said([7, 8, 0], [500, 0], [9, 0]))
    assert calls == {0: ToolCall("f", {"expression": "7 + 8"}), 2: ToolCall("f", {"expression": "9"})}
    dialogue.tell({2: ToolAnswer("no", "died: f: no"), 0: ToolAnswer("12345")})
    assert dialogue.members == (0, 2)
    assert dialogue.limits().tolist() == [3, 4]
    assert [context.tolist() for context in dialogue.contexts()] == [
        [901, 7, 8, 0, *b"123"], [903, 9, 0, *b"no"]
    ], "a result is cut to its limit"  # fmt: skip
    request = greedy_request(dialogue, (0,), 4)
    assert (request.max_new_tokens, request.seeds.shape, request.prompt_limits.tolist()) == (4, (2, 1), [3, 4])
    assert dialogue.hear(said([600, 601, 0], [3, 0])) == {}
    assert dialogue.members == ()
    first, second, third = dialogue.responses
    assert first.tokens.tolist() == [7, 8, 0, *b"123", 600, 601, 0]
    assert first.loss_mask.tolist() == [True] * 3 + [False] * 3 + [True] * 3
    assert first.log_probs[3:6].tolist() == [0.0] * 3
    assert first.text.endswith("</tool_call><tool_result>123</tool_result>600 601") and first.last_turn == "600 601"
    assert (first.finish, first.turns, first.tool_error) == ("stop", 2, "")
    assert (second.finish, second.turns, second.text) == ("stop", 1, "500")
    assert (third.finish, third.turns, third.tool_error) == ("turns", 2, "died: f: no"), "no call in the last turn"


def test_a_response_without_room_ends() -> None:
    dialogue = Dialogue(ROLLOUT, CODEC, [np.array([1], np.int32)])
    assert dialogue.hear(said([7, 8, 1, 1, 1, 0])) == {}, "a call that leaves no room for another token is not made"
    assert dialogue.responses[0].finish == "length"
    dialogue = Dialogue(ROLLOUT, CODEC, [np.array([1], np.int32)])
    assert dialogue.hear(said([7, 8, 1, 1, 1, 1], finish=FINISHED_LENGTH)) == {}, "nor is a call that was cut off"
    assert dialogue.responses[0].finish == "length"


def test_the_tokens_of_results_have_no_support() -> None:
    dialogue = Dialogue(ROLLOUT, CODEC, [np.array([n], np.int32) for n in (901, 902)])
    first = Support(np.arange(9, dtype=np.int32), np.array([1, 2, 1, 3, 2], np.int32))
    dialogue.hear(replace(said([7, 8, 0], [500, 0]), **support_fields(first)))
    dialogue.tell({0: ToolAnswer("12")})
    dialogue.hear(replace(said([600, 0]), **support_fields(Support(np.array([5, 6, 7], np.int32), np.array([1, 2])))))
    called, ended = (response.support for response in dialogue.responses)
    assert called.sizes.tolist() == [1, 2, 1, 0, 0, 1, 2] and called.tokens.tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert ended.sizes.tolist() == [3, 2] and ended.tokens.tolist() == [4, 5, 6, 7, 8]
