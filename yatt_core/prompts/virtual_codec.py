"""The codec of a virtual run, which has no model. Implements `TextCodec`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from yatt_core.prompts.call_syntaxes import CALL, CALL_END
from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.replies import EncodedReply
from yatt_core.prompts.token_lists import checked, without_stop
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.protocols.generation import Int32
from yatt_core.spec.sections.tools import ToolsSpec


class VirtualCodec:
    """The codec of a virtual run.

    The tokens of a prompt are its bytes, the text of a response is its token ids, and 0 ends a response.
    """

    stop_tokens = (0,)
    reading = Reading(prefill="")

    def __init__(
        self, vocabulary: int, longest: int, tools: ToolsSpec | None = None, tool_call_fraction: float = 0.0
    ) -> None:
        self._longest = longest
        self._tools = [tool.name for tool in tools.functions] if tools else []
        self._longest_result = tools.max_result_tokens if tools else 0
        self._calls_below = tool_call_fraction * vocabulary if tools else 0.0

    def encode_prompt(self, prompt: Prompt) -> Int32:
        """Returns the bytes of a prompt or of its transcript: [length]; images take no tokens.

        Raises `DataError`, which names the prompt, if it is too long.
        """
        return checked(list(prompt.text.encode()), self._longest, prompt.prompt_id, prompt.text)

    def encode_answer(self, text: str) -> Int32:
        """Returns the bytes of an answer and the stop token: [length]."""
        return np.array([*text.encode(), *self.stop_tokens], dtype=np.int32)

    def encode_reply(self, prompt: Prompt, reply: Sequence[Message]) -> EncodedReply:
        """Returns the bytes of a reply's transcript and the stop token."""
        tokens = self.encode_answer("".join(message.content for message in reply))
        return EncodedReply(tokens, np.ones(len(tokens), dtype=np.bool_))

    def encode_judged(self, template: str | None, prompt: Prompt, reply: Sequence[Message]) -> Int32:
        """Returns the bytes of prompt and response: [length]."""
        return np.array(list((prompt.text + "".join(message.content for message in reply)).encode()), dtype=np.int32)

    def decode(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the token ids of a response without its stop token, or a tool call if the first id is low enough."""
        ids = without_stop(tokens, self.stop_tokens)
        if ids and ids[0] < self._calls_below:
            name = self._tools[ids[0] % len(self._tools)]
            call = {"name": name, "arguments": {"expression": " + ".join(map(str, ids[:2]))}}
            return f"{CALL}{json.dumps(call)}{CALL_END}"
        return " ".join(map(str, ids))

    def decode_turn(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the text of a turn, which begins with its tokens."""
        return self.decode(tokens)

    def encode_result(self, text: str, call: ToolCall | None = None) -> tuple[Int32, str]:
        """Returns the bytes of a result, truncated if it is too long, and the text that remains."""
        data = text.encode()[: self._longest_result]
        return np.array(list(data), dtype=np.int32), data.decode(errors="ignore")
