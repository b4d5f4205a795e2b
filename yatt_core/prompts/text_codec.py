"""What converts texts to tokens and back: the protocol of a run's codec, which `codec.open_codec` opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from yatt_core.prompts.prompt import Message, Prompt
from yatt_core.prompts.reading import Reading
from yatt_core.prompts.replies import EncodedReply
from yatt_core.prompts.tool_calls import ToolCall
from yatt_core.protocols.generation import Int32


class TextCodec(Protocol):
    """Converts texts to tokens and back."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end a response, ascending."""
        ...

    @property
    def reading(self) -> Reading:
        """How the turns of the model are read."""
        ...

    def encode_prompt(self, prompt: Prompt) -> Int32:
        """Returns the tokens of a prompt, ready for generation: [length]. One without tools gets those of the spec.

        Raises `DataError`, which names the prompt, if it is too long, or if the model or the text has no place
        for its images.
        """
        ...

    def encode_answer(self, text: str) -> Int32:
        """Returns the tokens of a text as the policy may write it, including the end-of-sequence token: [length]."""
        ...

    def encode_reply(self, prompt: Prompt, reply: Sequence[Message]) -> EncodedReply:
        """Returns the tokens of a reply to learn from, behind those of its prompt, as the chat template renders both.

        Raises `DataError`, which names the prompt, for a conversation that the template does not render as it is generated.
        """
        ...

    def encode_judged(self, template: str | None, prompt: Prompt, reply: Sequence[Message]) -> Int32:
        """Returns the tokens of a prompt with its response as a reward model reads them: [length].

        template: as in a reward part of kind `reward_model`.

        Raises as `reward_tokens` does.
        """
        ...

    def decode(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the text of tokens that the policy generated, without its stop token and special tokens."""
        ...

    def decode_turn(self, tokens: Sequence[int] | Int32) -> str:
        """Returns the text of a turn: that of its tokens, behind what the chat template wrote at its beginning."""
        ...

    def encode_result(self, text: str, call: ToolCall | None = None) -> tuple[Int32, str]:
        """Returns the tokens between a turn that calls a tool and the next turn, [length], and the result's text.

        call: what is answered; None if it could not be read, or is not known.

        The text is truncated if it is too long.
        """
        ...
