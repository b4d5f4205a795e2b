"""The responses of one decode batch, turn by turn: a state machine without engines, tools or files.
Consumes the engine's output for the members' contexts, and the answers to the calls in it. Produces the
contexts of the next turn. Members continue in batch order, so that each turn's decode batch is a function of
the previous turns. Without tools a response is its first turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from yatt_core.experience.table import FINISH_LENGTH, FINISH_STOP, FINISH_TURNS
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.tool_calls import ToolAnswer, ToolCall, read_call, write_result
from yatt_core.protocols.generation import FINISHED_LENGTH, Float32, GenerateRequest, GenerateResult, Int32
from yatt_core.spec.sections.rollout import RolloutSpec
from yatt_core.tools.toolbox import Toolbox


@dataclass(slots=True)
class Response:
    """Everything that follows a prompt: the policy's turns and the tool results between them.
    text: text of all turns, with results in tags.
    last_turn: text of the latest turn.
    finish: reason of the end; empty until then.
    tool_error: the first error of a tool call.
    spoken: number of tokens of the policy.
    """

    prompt: Int32
    text: str = ""
    last_turn: str = ""
    turns: int = 0
    spoken: int = 0
    finish: str = ""
    tool_error: str = ""
    _tokens: list[Int32] = field(default_factory=list)
    _log_probs: list[Float32] = field(default_factory=list)
    _counts: list[bool] = field(default_factory=list)

    @property
    def tokens(self) -> Int32:
        """All tokens, [T]."""
        return np.concatenate(self._tokens)

    @property
    def log_probs(self) -> Float32:
        """Log-probabilities of the policy's tokens under the sampler, 0 for those of results, [T]."""
        return np.concatenate(self._log_probs)

    @property
    def loss_mask(self) -> npt.NDArray[np.bool_]:
        """True for the policy's tokens, [T]."""
        return np.repeat(self._counts, [len(part) for part in self._tokens])

    @property
    def context(self) -> Int32:
        """The tokens from which the next turn is generated."""
        return np.concatenate([self.prompt, *self._tokens])

    def say(self, tokens: Int32, log_probs: Float32, text: str) -> None:
        """Adds a turn of the policy."""
        self._add(tokens, log_probs, True)
        self.text += text
        self.last_turn = text
        self.turns += 1
        self.spoken += len(tokens)

    def be_told(self, tokens: Int32, text: str) -> None:
        """Adds what separates two turns."""
        self._add(tokens, np.zeros(len(tokens), dtype=np.float32), False)
        self.text += write_result(text)

    def _add(self, tokens: Int32, log_probs: Float32, counts: bool) -> None:
        self._tokens.append(tokens)
        self._log_probs.append(log_probs)
        self._counts.append(counts)


Media = Sequence[tuple[str, ...]]
Generate = Callable[["Dialogue"], GenerateResult]
"""Generates the next turn of a dialogue's members."""


class Dialogue:
    """The responses to some prompts.
    prompts: tokens of each response's prompt, one entry per response.
    media: content addresses of each prompt's images, one entry per response; empty for text-only prompts.
    """

    def __init__(self, rollout: RolloutSpec, codec: TextCodec, prompts: Sequence[Int32], media: Media = ()) -> None:
        self._rollout, self._codec, self._media = rollout, codec, media
        self.responses = [Response(prompt) for prompt in prompts]

    @property
    def turn(self) -> int:
        """Number of turns received; the latest may still be missing for some members."""
        return max((response.turns for response in self.responses), default=0)

    @property
    def members(self) -> tuple[int, ...]:
        """The indexes of the responses that continue, in order."""
        return tuple(number for number, response in enumerate(self.responses) if not response.finish)

    def limits(self) -> Int32:
        """Returns the maximum number of tokens that each member may still generate."""
        return np.array(
            [self._rollout.max_new_tokens - self.responses[number].spoken for number in self.members], dtype=np.int32
        )

    def contexts(self) -> list[Int32]:
        """Returns the tokens from which the members' next turn is generated."""
        return [self.responses[number].context for number in self.members]

    def question_lengths(self) -> Int32:
        """Returns the number of prompt tokens at the start of each member's context."""
        return np.array([len(self.responses[number].prompt) for number in self.members], dtype=np.int32)

    def media(self) -> Media:
        """Returns the images of each member's prompt; empty for text-only prompts."""
        return tuple(self._media[number] for number in self.members) if self._media else ()

    def hear(self, result: GenerateResult, numbers: Sequence[int] | None = None) -> dict[int, ToolCall | ToolAnswer]:
        """Adds the members' next turn; returns the calls in it by index of the response, to be answered with `tell`.
        numbers: the members whose turn it is; by default all.
        """
        bounds = np.cumsum(result.lengths)[:-1]
        turns = zip(
            self.members if numbers is None else numbers,
            np.split(result.tokens, bounds),
            np.split(result.log_probs, bounds),
            result.finish,
            strict=True,
        )
        calls = {}
        for number, tokens, log_probs, finish in turns:
            response = self.responses[number]
            response.say(tokens, log_probs, self._codec.decode(tokens))
            cut = finish == FINISHED_LENGTH
            call = None if cut or self._rollout.tools is None else read_call(response.last_turn)
            if cut or (call is not None and response.spoken >= self._rollout.max_new_tokens):
                response.finish = FINISH_LENGTH
            elif call is None:
                response.finish = FINISH_STOP
            elif response.turns == self._rollout.max_turns:
                response.finish = FINISH_TURNS
            else:
                calls[number] = call
        return calls

    def tell(self, answers: Mapping[int, ToolAnswer]) -> None:
        """Adds the answers to all calls of the latest turn."""
        for number, answer in answers.items():
            response = self.responses[number]
            response.tool_error = response.tool_error or answer.error
            response.be_told(*self._codec.encode_result(answer.text))


def greedy_request(dialogue: Dialogue, stop: tuple[int, ...], version: int) -> GenerateRequest:
    """Returns the request for the next turn of one greedy response to each prompt."""
    contexts, limits = dialogue.contexts(), dialogue.limits()
    return GenerateRequest(
        prompts=contexts,
        seeds=np.zeros((len(contexts), 1), dtype=np.uint64),
        max_new_tokens=int(limits.max()),
        stop_tokens=stop,
        weight_version=version,
        greedy=True,
        media=dialogue.media(),
        limits=limits,
        question_lengths=dialogue.question_lengths(),
    )


def hold(dialogue: Dialogue, generate: Generate, toolbox: Toolbox) -> list[Response]:
    """Runs a dialogue to its end without logging it; returns the responses."""
    while dialogue.members:
        dialogue.tell(dict(toolbox.answer(dialogue.hear(generate(dialogue)))))
    return dialogue.responses
