"""Reward functions of every calling convention."""

import asyncio
import time
import zlib

from yatt_core.errors import InfrastructureError, UnreadableResponseError


def facts(prompt, response, *, tokens, stop_reason, turns, answer, columns, scale=1.0):
    assert (answer, columns) == (prompt.answer, prompt.entry)
    assert stop_reason in ("stop", "length", "turns")
    return scale * (tokens + len(turns) / 10)


def last_token(prompt, response, token_ids):
    """Returns the last of the policy's tokens."""
    assert isinstance(token_ids, tuple)
    return float(token_ids[-1])


def results(prompt, response, turns):
    """Returns a number that depends on each turn, call and result."""
    calls = [turn.call.arguments for turn in turns if turn.call]
    return zlib.crc32(repr([turns, calls, [turn.result for turn in turns]]).encode()) / 2**32


def relative_length(prompt, responses, tokens, answer):
    """Returns each response's length relative to the longest of its group."""
    assert len(tokens) == len(responses) and answer == prompt.answer
    longest = max(map(len, responses)) or 1
    return [len(response) / longest for response in responses]


def rank(prompts, responses, answer):
    """Returns each response's rank by length within the batch."""
    assert len(prompts) == len(responses) == len(answer)
    lengths = sorted(map(len, responses))
    return [lengths.index(len(response)) for response in responses]


async def asking(prompt, response, seconds=0.0):
    """Takes the longer, the shorter the response is."""
    await asyncio.sleep(max(0.0, seconds - len(response) / 1000))
    return len(response)


async def asking_for_groups(prompt, responses):
    await asyncio.sleep(0.001)
    return tuple(map(len, responses))


async def mixed(prompt, response):
    if response == "slow":
        await asyncio.sleep(60)
    if response == "odd":
        raise UnreadableResponseError("odd")
    if response == "away":
        raise InfrastructureError("the service is away")
    if response == "own":
        raise TimeoutError("its own")
    return 1.0


def short_list(prompt, responses):
    return [1.0]


def no_list(prompts, responses):
    return 1.0


def odd_group(prompt, responses):
    raise UnreadableResponseError("odd")


def needs_more(prompt, response, stop_reasn):
    return 1.0


def needs_something(prompt, response, weather):
    return 1.0


def plain(prompt, response, tokens=3):
    return tokens


def sleeping_a_little(prompt, response):
    time.sleep(0.001)
    return len(response)


def messages(prompt, response):
    """Returns the number of the conversation's messages, if they arrive as they were."""
    assert [message.role for message in prompt.messages][-1] == "user"
    return len(prompt.messages)


def even_steps(prompt, steps):
    """Calls the steps wrong whose first number is even."""
    return [bool(step.strip()) and step.split()[0][-1] in "02468" for step in steps]


def odd_answers(prompt, steps, kind="numbers"):
    """Returns something else than a boolean for each step."""
    return {"numbers": [0] * len(steps), "short": [True] * (len(steps) - 1), "number": 1.0}[kind]


def spoken(prompt, response, thoughts, final, prefill):
    """Returns a number that depends on all that it receives of a response."""
    return zlib.crc32(repr([response, thoughts, final, prefill]).encode()) / 2**32


def spoken_by_group(prompt, responses, thoughts, final):
    return [len(thought) * 100 + len(text) for thought, text in zip(thoughts, final, strict=True)]
