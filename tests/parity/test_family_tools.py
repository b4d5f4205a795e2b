"""Calls of tools in the templates of eight families: read as they are written, and answered as the template renders results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.families import FAMILIES_WITH_TOOLS, PEERS, make_folder, template_of
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.codec import generation_stops
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.prompt_codec import CodecSettings, PromptCodec
from yatt_core.prompts.tool_calls import ToolCall, read_call
from yatt_core.spec.sections.tools import ToolsSpec

pytestmark = pytest.mark.verify
ARGUMENTS = {"expression": "3 * 4", "digits": 2, "exact": False}
TOOLS = ToolsSpec.model_validate(
    {
        "functions": [
            {
                "name": "calculator",
                "function": "calculator",
                "description": "Computes.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "expression": {"type": "string"},
                        "digits": {"type": "integer"},
                        "exact": {"type": "boolean"},
                    },
                    "required": ["expression"],
                },
            }
        ],
        "max_result_tokens": 400,
    }
)
UNDESCRIBED = ToolsSpec.model_validate(
    {"functions": [{"name": "calculator", "function": "calculator"}], "max_result_tokens": 400}
)
TOOLS_NOT_SHOWN = {"deepseekv3"}
"""Families whose templates write calls and results, but no descriptions."""
CALL = Message("assistant", "", calls=(ToolCall("calculator", ARGUMENTS, "callid123"),))
RESULT = Message("tool", "12<|end|></think>", name="calculator", call_id="callid123")


@pytest.fixture(params=FAMILIES_WITH_TOOLS)
def codec(request: pytest.FixtureRequest, tmp_path: Path) -> PromptCodec:
    if not PEERS.exists():
        pytest.fail("the peers' environment is missing; `make verify` makes it, as does ops/bootstrap.py --peers")
    make_folder(tmp_path, FAMILIES_WITH_TOOLS[request.param], template_of(request.param))
    stops = generation_stops(tmp_path, {})
    tools = UNDESCRIBED if request.param in TOOLS_NOT_SHOWN else TOOLS
    return PromptCodec(load_tokenizer(tmp_path), CodecSettings(), 8192, stops, tools=tools)


def test_a_call_is_read_in_the_familys_own_form(codec: PromptCodec) -> None:
    prompt = Prompt(0, 0, "p", "3 * 4?", None, {})
    encoded = codec.encode_reply(prompt, [CALL])
    assert encoded.learnt.all() and encoded.tokens[-1] in codec.stop_tokens
    # Where the prompt ends before the mark of thoughts, the turn does not begin with it.
    turn = (codec.decode if encoded.missing else codec.decode_turn)(encoded.tokens)
    found = read_call(turn, codec.reading)
    assert found == ToolCall("calculator", ARGUMENTS)


def test_turn_and_result_are_what_the_template_renders(codec: PromptCodec) -> None:
    prompt = Prompt(0, 0, "p", "3 * 4?", None, {})
    reply = [CALL, RESULT, Message("assistant", "It is 12.")]
    question = codec.encode_prompt(prompt)
    called = codec.encode_reply(prompt, [CALL])
    whole = codec.encode_reply(prompt, reply)
    result, text = codec.encode_result(RESULT.content, CALL.calls[0])
    assert text == RESULT.content
    kept = question[: len(question) - called.missing].tolist()
    so_far = [*kept, *called.tokens.tolist(), *result.tolist()]
    learnt = [*kept, *whole.tokens.tolist()]
    first = len(kept) + int(whole.learnt.argmin())
    assert so_far[:first] == learnt[:first]
    # The result's frame ends where the next turn begins; what the generation prompt writes there may be missing before a reply.
    second = len(kept) + len(whole.learnt) - int(whole.learnt[::-1].argmin())
    assert so_far[:second] == learnt[:second] and len(so_far) - second < 12
    assert codec.tokenizer.decode(whole.tokens[second - len(kept) :]).startswith(("It is 12.", "\n", "<"))
