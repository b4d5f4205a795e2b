"""Converts between a generative judge's texts and its model's tokens.

Consumes a model folder's tokenizer and chat template, the judge's template and items. Produces tokens ready for
generation, and the texts of answers. The policy's text is encoded separately from the template, and never as
special tokens: a response that spells out the end of a turn cannot start a turn of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError

from yatt_core.errors import ConfigurationError, DataError
from yatt_core.judges.template import TemplatePiece, filled
from yatt_core.models.config_file import read_config
from yatt_core.models.known_tokens import within_rows
from yatt_core.models.model_folder import positions_of
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.prompts.chat_template import ChatTemplate
from yatt_core.prompts.codec import generation_stops
from yatt_core.prompts.control_text import MARK, control_text
from yatt_core.prompts.prompt import Message
from yatt_core.prompts.thoughts import THINK, marks_of_template, split_thoughts
from yatt_core.prompts.token_lists import decoded, dropped_tokens, without_stop
from yatt_core.protocols.generation import Int32
from yatt_core.protocols.judges import JudgeItem

UNBOUNDED = 1 << 20
"""Number of positions assumed for a model whose config states no limit."""
PLACE = "the-text-of-the-judge"
"""Placeholder of the user's message while the chat template is rendered."""


class JudgeCodec:
    """Encodes questions, which are filled-in templates ready for generation, and decodes answers.

    longest: maximum number of tokens of a question.
    """

    def __init__(self, tokenizer: Any, template: str, longest: int, stop_tokens: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.longest = longest
        self._marks = marks_of_template(str(tokenizer.chat_template or ""))
        self._control = control_text(tokenizer, self._marks)
        self._chat: ChatTemplate | None = None
        if tokenizer.chat_template is not None:
            self._chat = ChatTemplate(tokenizer, self._control, self._marks, {})
        self._before, self._after = self._frame()
        self._prefill = "" if self._chat is None else self._chat.prefill
        self.stop_tokens = tuple(sorted({*stop_tokens, *self._ends()}))
        self._dropped = dropped_tokens(tokenizer, self._marks.spellings)
        self._fixed: dict[str, list[int]] = {}

    def encode(self, items: Sequence[JudgeItem]) -> list[Int32 | str]:
        """Returns the tokens of each item's question, [length], or the reason why it cannot be asked."""
        questions = [self._pieces(item) for item in items]
        known = [pieces for pieces in questions if not isinstance(pieces, str)]
        encoded = iter(self._plain([piece.text for pieces in known for piece in pieces if piece.name is not None]))
        return [pieces if isinstance(pieces, str) else self._joined(pieces, encoded) for pieces in questions]

    def decode(self, tokens: Int32) -> str:
        """Returns the text of an answer, with its thoughts between the usual marks, without its stop token."""
        ids = without_stop(tokens, self.stop_tokens)
        text = self._prefill + decoded(self._tokenizer, ids, self._dropped)
        if self._marks == THINK:
            return text
        split = split_thoughts(text, self._marks)
        return f"{THINK.begin}\n{split.thoughts}\n{THINK.end}\n\n{split.final}" if split.thoughts else split.final

    def _frame(self) -> tuple[str, str]:
        """Returns what the chat template puts before and after a user message."""
        if self._chat is None:
            return "", ""
        try:
            rendered = self._chat.render([Message("user", PLACE)])
        except TemplateError as error:
            raise ConfigurationError(f"the judge's chat template rejects user messages: {error}") from None
        before, found, after = rendered.partition(PLACE)
        if not found:
            raise ConfigurationError("the judge's chat template drops the user message")
        return before, after

    def _ends(self) -> tuple[int, ...]:
        """Returns the token with which the chat template ends the judge's turns."""
        try:
            return () if self._chat is None else self._chat.end[:1]
        except TemplateError:
            return ()  # a template without turns of an assistant

    def _pieces(self, item: JudgeItem) -> Sequence[TemplatePiece] | str:
        try:
            return [TemplatePiece(self._before), *filled(self._template, item), TemplatePiece(self._after)]
        except DataError as error:
            return str(error)

    def _joined(self, pieces: Sequence[TemplatePiece], encoded: Iterator[list[int]]) -> Int32 | str:
        """Joins the tokens of one question.

        encoded: the tokens of the pieces that are not part of the template, in order.
        """
        tokens: list[int] = [] if self._tokenizer.chat_template else list(self._tokenizer("")["input_ids"])
        for piece in pieces:
            tokens += self._special(piece.text) if piece.name is None else next(encoded)
        if len(tokens) > self.longest:
            return f"the judge's question has {len(tokens)} tokens; its model has room for {self.longest}"
        return np.array(tokens, dtype=np.int32) if tokens else "the judge's question has no tokens"

    def _special(self, text: str) -> list[int]:
        """Returns the tokens of a trusted text, special tokens included; cached, because all items share them."""
        if text not in self._fixed:
            self._fixed[text] = list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []
        return self._fixed[text]

    def _plain(self, texts: list[str]) -> list[list[int]]:
        """Returns the tokens of untrusted texts, in which control tokens are encoded as ordinary text."""
        guarded = [self._control.guard(text) for text in texts]
        plain = [text for text in guarded if MARK not in text]
        encoded = iter(self._tokenizer(plain, add_special_tokens=False)["input_ids"]) if plain else iter(())
        return [self._control.encode(text) if MARK in text else list(next(encoded)) for text in guarded]


def open_judge_codec(model_path: str, template: str, max_new_tokens: int) -> JudgeCodec:
    """Returns the codec of a judge in a Hugging Face folder. Raises `ConfigurationError` if it cannot be used."""
    folder = Path(model_path)
    config = read_config(folder)
    tokenizer = within_rows(load_tokenizer(folder), config, folder)
    if tokenizer.eos_token_id is None:
        raise ConfigurationError(f"the judge's tokenizer in {folder} has no end-of-sequence token")
    positions = positions_of(config)
    longest = (UNBOUNDED if positions is None else positions) - max_new_tokens
    if longest < 1:
        raise ConfigurationError(
            f"max_new_tokens {max_new_tokens} leaves no room for a question in the judge's {positions} positions"
        )
    return JudgeCodec(tokenizer, template, longest, [tokenizer.eos_token_id, *generation_stops(folder, config)])
