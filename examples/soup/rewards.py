"""Rewards of three objectives that compete for the letters of a response.

A letter counts for one of them at most: `echo` if it occurs in the task's word, else `vowels` if it is a vowel, else `fresh`.
Each is the square root of its letters' share of six, so that the first letters of a kind are worth most.
"""

from __future__ import annotations

from math import sqrt

from yatt_core.prompts.prompt import Prompt

LETTERS = 6
VOWELS = frozenset("aeiou")
ECHO = "echo"
VOWEL = "vowel"
FRESH = "fresh"


def _reward(prompt: Prompt, response: str, kind: str) -> float:
    word = (prompt.answer or "").lower()
    letters = [letter for letter in response.lower()[:LETTERS] if letter.isalpha()]
    return sqrt(sum(_kind(letter, word) == kind for letter in letters) / LETTERS)


def _kind(letter: str, word: str) -> str:
    if letter in word:
        return ECHO
    return VOWEL if letter in VOWELS else FRESH


def echo(prompt: Prompt, response: str) -> float:
    """Returns the reward for letters of the task's word."""
    return _reward(prompt, response, ECHO)


def vowels(prompt: Prompt, response: str) -> float:
    """Returns the reward for vowels that are not in the task's word."""
    return _reward(prompt, response, VOWEL)


def fresh(prompt: Prompt, response: str) -> float:
    """Returns the reward for consonants that are not in the task's word."""
    return _reward(prompt, response, FRESH)
