"""Hydra's overrides: `key=value`, `+key=value`, `++key=value`, and `~key`, which deletes a key; values by Hydra's own grammar.

Consumes words of a command. Produces keys and plain data; interpolations such as `${a.b}` stay texts. Raises
`ConfigurationError`, which does not repeat values, since they may be secrets.
"""

from __future__ import annotations

import re
from typing import Any

from ops.starter.peers.variables import closing
from yatt_core.errors import ConfigurationError

DELETES = "~"
"""Begins a key that is deleted."""
_SET = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_DELETED = re.compile(r"~([A-Za-z_][\w./@-]*)(?:=(.*))?", re.DOTALL)
_DIGITS = r"\d(?:_?\d)*"
_WHOLE = re.compile(r"[-+]?(?:0|[1-9](?:_?\d)*)")
_POINT = rf"(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})"
_EXPONENT = rf"[eE][-+]?{_DIGITS}"
_REAL = re.compile(rf"[-+]?(?:{_POINT}(?:{_EXPONENT})?|{_DIGITS}{_EXPONENT})")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPED = frozenset("\\()[]{}:=, \t")
_CLOSING = {"[": "]", "{": "}"}
_EXPRESSIONS = {"${": ("{", "}"), "$(": ("(", ")")}


def override_of(word: str, place: str) -> tuple[str, Any] | None:
    """Returns the key and the value of an override; a deleted key begins with `~`. None for another word.

    place: for messages.
    """
    found = _SET.fullmatch(word) or _DELETED.fullmatch(word)
    if found is None:
        return None
    key = f"{DELETES}{found[1]}" if word.startswith(DELETES) else found[1]
    return key, None if found[2] is None else value_of(found[2], f"{place}: {key}")


def is_override(word: str) -> bool:
    """Returns whether a word sets or deletes a key."""
    return (_SET.fullmatch(word) or _DELETED.fullmatch(word)) is not None


def value_of(text: str, place: str) -> Any:
    """Returns a value: a scalar, or a list or mapping of values."""
    reader = _Reader(text, place)
    value = reader.value("")
    reader.skip_space()
    if reader.at < len(text):
        raise reader.wrong("nothing behind its end")
    return value


class _Reader:
    """A place in a value's text."""

    def __init__(self, text: str, place: str) -> None:
        self.text = text
        self.at = 0
        self._place = place

    def wrong(self, expected: str) -> ConfigurationError:
        """Returns the error about what is at the place."""
        return ConfigurationError(
            f"{self._place}: the value cannot be read as Hydra reads it: expected {expected} at its character {self.at + 1}"
        )

    def skip_space(self) -> None:
        """Goes to what is no space."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def value(self, ends: str) -> Any:
        """Returns the value at the place.

        ends: characters that end a scalar.
        """
        self.skip_space()
        begin = self.text[self.at : self.at + 1]
        if begin and begin in _CLOSING:
            return self._container(begin)
        quoted = self._quoted(ends)
        return _scalar(*self._plain(ends)) if quoted is None else quoted

    def _container(self, begin: str) -> Any:
        """Returns a list or a mapping."""
        end = _CLOSING[begin]
        values = list[Any]()
        keys = list[str]()
        self.at += 1
        self.skip_space()
        while self.text[self.at : self.at + 1] != end or values:
            if begin == "{":
                keys.append(self._key())
            values.append(self.value(f",{end}"))
            self.skip_space()
            separator = self.text[self.at : self.at + 1]
            if separator == end:
                break
            if separator != ",":
                raise self.wrong(f"a comma or {end}")
            self.at += 1
        self.at += 1
        return values if begin == "[" else dict(zip(keys, values, strict=True))

    def _key(self) -> str:
        self.skip_space()
        quoted = self._quoted(":")
        key = self._plain(":,}")[0] if quoted is None else quoted
        self.skip_space()
        if not key or self.text[self.at : self.at + 1] != ":":
            raise self.wrong("a key with a colon behind it")
        self.at += 1
        return key

    def _quoted(self, ends: str) -> str | None:
        """Returns the text in quotes at the place; None if there is none, or something else follows it."""
        found = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL).match(self.text, self.at)
        if found is None:
            return None
        behind = self.text[found.end() :].lstrip()
        if behind and behind[0] not in ends:
            return None
        self.at = found.end()
        quote = found[0][0]
        inner = found[0][1:-1]
        return re.sub(rf"(\\+)(?={quote}|$)", lambda back: "\\" * (len(back[1]) // 2), inner).replace(
            f"\\{quote}", quote
        )

    def _plain(self, ends: str) -> tuple[str, bool]:
        """Returns the text of a scalar, and whether it is one in any case, since something in it was escaped."""
        found = list[str]()
        escaped = False
        while self.at < len(self.text) and self.text[self.at] not in ends:
            two = self.text[self.at : self.at + 2]
            if two in _EXPRESSIONS:
                stop = closing(self.text, self.at + 1, *_EXPRESSIONS[two])
                found.append(self.text[self.at : stop])
                self.at = stop
            elif two[0] == "\\" and len(two) == 2 and two[1] in _ESCAPED:
                found.append(two[1])
                escaped = True
                self.at += 2
            elif ends and two[0] in "[]{}":
                raise self.wrong(f"one of {' '.join(ends)}")
            else:
                found.append(two[0])
                self.at += 1
        text = "".join(found)
        if ends and not text.strip():
            raise self.wrong("a value")
        return text.strip(), escaped


def _scalar(text: str, escaped: bool) -> Any:
    if escaped:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) else text
