"""Reward functions that misbehave, each in its own way."""

import contextlib
import time

import numpy as np

from yatt_core.errors import InfrastructureError

CONSTANT = 1.0


def length(prompt, response, scale=1.0):
    return len(response) * scale


def raising(prompt, response):
    raise ValueError(f"cannot judge {response!r}")


def raising_at_odd_lengths(prompt, response):
    if len(response) % 2:
        raise ValueError("an odd length")
    return float(len(response) % 4 == 0)


def addressed(prompt, response):
    raise TypeError(f"cannot judge {object()!r}")


def leaving(prompt, response):
    raise SystemExit(3)


def unavailable(prompt, response):
    raise InfrastructureError("the judge is away")


def sleeping(prompt, response):
    time.sleep(60)


def spinning(prompt, response):
    while True:
        with contextlib.suppress(Exception):
            sum(range(1000))


def not_a_number(prompt, response):
    return float("nan")


def infinite(prompt, response):
    return np.float32("inf")


def boundless(prompt, response):
    return 10**400


def enormous(prompt, response):
    return 1e300


def nearly_enormous(prompt, response):
    return 1e29


def unwritable(prompt, response):
    raise ValueError("bad \udc80 name")


def speechless(prompt, response):
    class SpeechlessError(Exception):
        def __str__(self):
            raise RuntimeError(response)

    raise SpeechlessError


def wordy(prompt, response):
    return "good"


def silent(prompt, response):
    return None


def verdict(prompt, response):
    return np.bool_(response == "yes")
