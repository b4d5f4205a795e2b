"""Reads the commands of a shell script as far as configurations need it: words, quotes, variables, arrays and here-documents.

Consumes text. Produces commands, each a list of words with their lines. Runs nothing: what only a shell can know, such as
`$(command)` and the arguments of the script, stays in the text as it is. Raises `ConfigurationError`, which names the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ops.starter.peers.variables import closing, replaced, variable_of
from yatt_core.errors import ConfigurationError

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=")
_HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
KEYWORDS = frozenset(
    {"if", "then", "else", "elif", "fi", "do", "done", "while", "for", "{", "}", "exec", "nohup", "time"}
)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command.

    parts: its text in pieces, each with whether variables in it are replaced.
    bare: whether no part of it is in quotes, so that a shell divides what replaces a variable into words.
    """

    parts: tuple[tuple[str, bool], ...]
    line: int
    bare: bool = True

    @property
    def text(self) -> str:
        """The text, with the names of variables."""
        return "".join(text for text, _ in self.parts)


@dataclass(slots=True)
class Statement:
    """What stands between two ends of commands.

    array: words of an array that is assigned to the name in the first word.
    here: words of a here-document.
    """

    words: list[Word] = field(default_factory=list)
    array: list[Word] | None = None
    here: list[Word] | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A word after its variables were replaced."""

    text: str
    line: int


@dataclass(slots=True)
class Script:
    """What a script says.

    commands: its commands, without assignments.
    exports: environment variables that it sets.
    variables: all that it sets, the same in exports among them.
    """

    commands: list[list[Said]] = field(default_factory=list)
    exports: list[tuple[str, Said]] = field(default_factory=list)
    variables: list[tuple[str, Said]] = field(default_factory=list)


def read_script(text: str, file: str, home: str) -> Script:
    """Returns the commands of a script.

    home: value of the variable HOME, the only one of the environment that is replaced.
    """
    script = Script()
    variables: dict[str, list[Said]] = {"HOME": [Said(home, 0)]}
    for statement in _Reader(text, file).statements():
        words = list(statement.words)
        while words and words[0].text in KEYWORDS:
            words.pop(0)
        if not words:
            continue
        exports = words[0].text == "export"
        assigned = words[1:] if exports else words
        if statement.array is not None:
            variables[assigned[0].text.removesuffix("=")] = _replaced(statement.array, variables)
        elif statement.here is not None and words[0].text == "read":
            variables[words[-1].text] = _replaced(statement.here, variables)
        elif all(_ASSIGNMENT.match(word.text) for word in assigned):
            for word in assigned:
                name, value = _assignment(word, variables)
                variables[name] = [value]
                script.variables.append((name, value))
                if exports:
                    script.exports.append((name, value))
        else:
            script.commands.append(_replaced(words, variables))
    return script


def _assignment(word: Word, variables: Mapping[str, Sequence[Said]]) -> tuple[str, Said]:
    name, _, value = _text(word, variables).partition("=")
    return name, Said(value, word.line)


def _replaced(words: Sequence[Word], variables: Mapping[str, Sequence[Said]]) -> list[Said]:
    """Returns words with the values of variables; a word that is a variable becomes all of its words."""
    found = list[Said]()
    for word in words:
        name = variable_of(word.text) if all(replaces for _, replaces in word.parts) else None
        several = variables.get(name or "")
        if several is not None and (len(several) > 1 or "[" in word.text):
            found.extend(several)
        elif several is not None and word.bare and "$(" not in several[0].text and "`" not in several[0].text:
            found.extend(Said(part, word.line) for part in several[0].text.split())
        else:
            found.append(Said(_text(word, variables), word.line))
    return found


def _text(word: Word, variables: Mapping[str, Sequence[Said]]) -> str:
    values = {name: " ".join(said.text for said in known) for name, known in variables.items()}
    return "".join(replaced(text, values) if replaces else text for text, replaces in word.parts)


class _Reader:
    """Divides a text into statements."""

    def __init__(self, text: str, file: str, line: int = 1) -> None:
        self._text = text
        self._file = file
        self._at = 0
        self._line = line
        self._ends: list[tuple[Statement, str]] = []

    def statements(self) -> Iterator[Statement]:
        """Yields the statements; here-documents are read at the end of the line that begins them."""
        while self._at < len(self._text):
            statement = Statement(self._words(frozenset("\n;|&)")))
            if statement.words and statement.words[-1].text.endswith("=") and self._next() == "(":
                statement.array = self._array()
            self._note_here(statement)
            self._pass_end()
            if statement.words:
                yield statement

    def _next(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _step(self) -> str:
        character = self._text[self._at]
        self._at += 1
        self._line += character == "\n"
        return character

    def _pass_end(self) -> None:
        """Passes what ended a statement, and reads the here-documents at the end of a line."""
        if self._at >= len(self._text):
            return
        if self._step() == "\n":
            for statement, end in self._ends:
                statement.here = self._here(end)
            self._ends.clear()

    def _note_here(self, statement: Statement) -> None:
        for number, word in enumerate(statement.words):
            if found := _HERE.fullmatch(word.text):
                self._ends.append((statement, found[2]))
                statement.here = []
                del statement.words[number]
                return

    def _here(self, end: str) -> list[Word]:
        start = self._line
        lines = list[str]()
        while self._at < len(self._text):
            begin = self._at
            stop = self._text.find("\n", begin)
            stop = len(self._text) if stop < 0 else stop
            self._at = min(stop + 1, len(self._text))
            self._line += 1
            line = self._text[begin:stop]
            if line.strip() == end:
                return _Reader("\n".join(lines), self._file, start)._words(frozenset(), comments=False)
            lines.append(line)
        raise ConfigurationError(f"{self._file}, line {start}: the here-document does not end; expected a line {end}")

    def _array(self) -> list[Word]:
        start = self._line
        self._step()
        words = self._words(frozenset(")"))
        if self._next() != ")":
            raise ConfigurationError(f"{self._file}, line {start}: the array does not end; expected a )")
        self._step()
        return words

    def _words(self, ends: frozenset[str], comments: bool = True) -> list[Word]:
        """Returns the words up to one of the characters that end a statement, which is not passed."""
        words = list[Word]()
        while self._at < len(self._text):
            character = self._next()
            if character in ends:
                break
            if self._next(2) == "\\\n" or character in " \t\r\n":
                self._step()
                if character == "\\":
                    self._step()
            elif character == "#" and comments:
                while self._at < len(self._text) and self._next() != "\n":
                    self._step()
            elif character == "(":
                if words and words[-1].text.endswith("=") and "\n" in ends:
                    break
                self._step()
            else:
                words.append(self._word(ends))
        return words

    def _word(self, ends: frozenset[str]) -> Word:
        line = self._line
        parts = list[tuple[str, bool]]()
        bare = True
        while self._at < len(self._text):
            character = self._next()
            if character in " \t\r\n" or character in ends or self._next(2) == "\\\n":
                break
            if character == "(" and parts and parts[-1][0].endswith("="):
                break
            if character == "'" or self._next(2) == "$'":
                parts.append((self._single(line), False))
                bare = False
            elif character == '"':
                parts.extend(self._double(line))
                bare = False
            elif self._next(3) == "$((":
                parts.append((self._bracketed("(", ")", line), True))
            elif self._next(2) == "$(" or character == "`":
                parts.append((self._substitution(line), False))
            elif character == "\\":
                self._step()
                parts.append((self._step() if self._at < len(self._text) else "\\", False))
            elif self._next(2) == "${":
                parts.append((self._bracketed("{", "}", line), True))
            else:
                parts.append((self._step(), True))
        return Word(_joined(parts), line, bare)

    def _until(self, end: str, line: int) -> str:
        begin = self._at
        stop = self._text.find(end, begin)
        if stop < 0:
            raise ConfigurationError(
                f"{self._file}, line {line}: {self._text[begin : begin + 20]!r} does not end with {end}"
            )
        while self._at <= stop:
            self._step()
        return self._text[begin : stop + 1]

    def _bracketed(self, opens: str, closes: str, line: int) -> str:
        """Returns a variable or an arithmetic expression, with what stands in its brackets."""
        begin = self._at
        stop = closing(self._text, begin + 1, opens, closes)
        if self._text[stop - 1] != closes:
            raise ConfigurationError(f"{self._file}, line {line}: ${opens} does not end; expected a {closes}")
        while self._at < stop:
            self._step()
        return self._text[begin:stop]

    def _single(self, line: int) -> str:
        escapes = self._next() == "$"
        if escapes:
            self._step()
        self._step()
        text = list[str]()
        while self._at < len(self._text):
            character = self._step()
            if character == "'":
                return "".join(text)
            if escapes and character == "\\" and self._next() in _ESCAPES:
                character = _ESCAPES[self._step()]
            text.append(character)
        raise ConfigurationError(f"{self._file}, line {line}: the quotation does not end; expected a '")

    def _double(self, line: int) -> Iterator[tuple[str, bool]]:
        self._step()
        yield "", True
        while self._at < len(self._text):
            if self._next(3) == "$((" or self._next(2) == "${":
                opens = self._text[self._at + 1]
                yield self._bracketed(opens, ")" if opens == "(" else "}", line), True
                continue
            if self._next(2) == "$(":
                yield self._substitution(line), False
                continue
            character = self._step()
            if character == '"':
                return
            if character == "\\" and self._next() in '"\\$`\n':
                escaped = self._step()
                yield ("" if escaped == "\n" else escaped), False
            else:
                yield character, True
        raise ConfigurationError(f'{self._file}, line {line}: the quotation does not end; expected a "')

    def _substitution(self, line: int) -> str:
        """Returns a command whose output is meant, as it is written."""
        if self._next() == "`":
            self._step()
            return "`" + self._until("`", line)
        return self._bracketed("(", ")", line)


def _joined(parts: Sequence[tuple[str, bool]]) -> tuple[tuple[str, bool], ...]:
    """Returns pieces with neighbours of one kind joined."""
    joined = list[tuple[str, bool]]()
    for text, replaces in parts:
        if joined and joined[-1][1] == replaces:
            joined[-1] = (joined[-1][0] + text, replaces)
        else:
            joined.append((text, replaces))
    return tuple(joined)
