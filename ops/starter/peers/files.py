"""Reads a peer's file: YAML, a command, or a shell script that starts a run.

Consumes a path. Produces a `PeerFile`. Raises `ConfigurationError`, which names the file and the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode

from ops.starter.peers.entries import ConfigEntry, PeerFile
from ops.starter.peers.hydra import DELETES, is_override, override_of
from ops.starter.peers.programs import Program, find_program, guess_program
from ops.starter.peers.secrets import keep_out
from ops.starter.peers.shell import Said, Script, read_script
from yatt_core.errors import ConfigurationError
from yatt_core.spec.reading.documents import parse_yaml

REST = "$@"
"""Stands for the arguments that a script was given itself."""
RESTS = frozenset({REST, "${@}", "${@:1}", "${@:2}", "${@:3}", "$*"})
_HYDRA_TOPS = frozenset(
    {"actor_rollout_ref", "algorithm", "critic", "trainer", "reward", "reward_model", "optim", "engine"}
)
_PROCESSES = ("nproc_per_node", "num_processes", "num_gpus")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}
_CONFIG_NAMES = ("--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd")


def read_peer_file(path: Path, peer: Program | None = None) -> tuple[Program, PeerFile]:
    """Returns what a file says, and the program that reads it.

    peer: the program that `--peer` names.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--from {path}: is not UTF-8 text: byte {error.start} cannot be read") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"--from {path}: cannot be read: {reason}") from None
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return _of_yaml(text, path, peer)
    return _of_script(read_script(text, str(path), str(Path.home())), path, peer)


def _of_yaml(text: str, path: Path, peer: Program | None) -> tuple[Program, PeerFile]:
    tree = parse_yaml(text, str(path))
    if not isinstance(tree, dict) or not tree:
        raise ConfigurationError(f"--from {path}: expected a mapping of keys to values, with at least one key")
    nested = peer.hydra if peer else any(key in _HYDRA_TOPS and isinstance(tree[key], dict) for key in tree)
    lines = dict(_lines(YAML(typ="rt").compose(text), ""))
    values = dict(_leaves(tree, "")) if nested else tree
    entries = tuple(ConfigEntry(key, value, lines.get(key, 1)) for key, value in values.items())
    program = peer or guess_program([entry.key for entry in entries], str(path))
    given = values.get("num_processes")
    return program, PeerFile(program.name, _present(program, entries, path), given if isinstance(given, int) else None)


def _leaves(tree: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Yields the values of nested mappings with their keys joined by dots."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _lines(node: Any, above: str) -> Iterator[tuple[str, int]]:
    """Yields the line of each key."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            name = f"{above}{key.value}"
            yield name, key.start_mark.line + 1
            yield from _lines(value, f"{name}.")


def _of_script(script: Script, path: Path, peer: Program | None) -> tuple[Program, PeerFile]:
    """Returns the run that a script starts; one alone, so that it is clear which one is meant."""
    for name, said in script.variables:
        keep_out(name, said.text)
    runs = list[tuple[Program, list[Said], list[Said]]]()
    for command in script.commands:
        found = find_program([said.text for said in command], f"{path}, line {command[0].line}")
        if found is not None:
            program, count = found
            runs.append((program, command[:count], command[count:]))
    if len(runs) > 1:
        lines = ", ".join(str(launcher[0].line) for _, launcher, _ in runs)
        raise ConfigurationError(f"--from {path}: it starts several runs, on lines {lines}; keep one of them in a file")
    if not runs:
        return _of_bare_arguments(script, path, peer)
    program, launcher, words = runs[0]
    if peer is not None and peer is not program:
        raise ConfigurationError(f"--peer {peer.name}: {path} starts {program.name}; leave --peer out")
    entries = [
        *(ConfigEntry(f"export {name}", said.text, said.line) for name, said in script.exports),
        *_launching(launcher),
        *_arguments(words, program.hydra, path),
    ]
    entries = _with_config(entries, path)
    return program, PeerFile(program.name, _present(program, entries, path), _processes(entries))


def _of_bare_arguments(script: Script, path: Path, peer: Program | None) -> tuple[Program, PeerFile]:
    """Returns the arguments of a file that has nothing else."""
    found = [words for words in script.commands if words[0].text.startswith("--") or is_override(words[0].text)]
    if not found or len(found) != len(script.commands):
        raise ConfigurationError(
            f"--from {path}: expected YAML (.yaml), a command or script that starts a run of verl, TRL or OpenRLHF, such as "
            "`python3 -m verl.trainer.main_ppo data.train_batch_size=1024`, or its arguments alone"
        )
    words = [word for command in found for word in command]
    hydra = peer.hydra if peer else not words[0].text.startswith("--")
    entries = _with_config(list(_arguments(words, hydra, path)), path)
    program = peer or guess_program([entry.key for entry in entries], str(path))
    return program, PeerFile(program.name, _present(program, entries, path), _processes(entries))


def _launching(words: Sequence[Said]) -> Iterator[ConfigEntry]:
    """Yields the options of what starts the program, such as `torchrun --nproc-per-node`."""
    name = list[str]()
    for number, said in enumerate(words):
        option, equals, value = said.text.partition("=")
        following = words[number + 1].text if number + 1 < len(words) else "-"
        if said.text.startswith("-") and said.text not in ("--", "-m", "--module"):
            separate = not equals and not following.startswith("-") and number + 2 < len(words)
            yield ConfigEntry(
                f"{' '.join(name) or 'command'} {option}",
                _scalar(following if separate else value or "true"),
                said.line,
            )
        elif equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", option):
            keep_out(option, value)
            yield ConfigEntry(f"export {option}", value, said.line)
        elif not name or (number == len(name) and not any(word.text.startswith("-") for word in words[:number])):
            name.append(said.text)


def _processes(entries: Sequence[ConfigEntry]) -> int | None:
    """Returns the number of processes that a launcher starts."""
    counts = {entry.key.rpartition(" ")[2].lstrip("-").replace("-", "_"): entry.value for entry in entries}
    for name in _PROCESSES:
        if isinstance(count := counts.get(name), int) and count > 0:
            nodes = counts.get("nnodes", 1)
            return count * (nodes if isinstance(nodes, int) and name.startswith("nproc") else 1)
    return None


def _arguments(words: Sequence[Said], hydra: bool, path: Path) -> Iterator[ConfigEntry]:
    return _overrides(words, path) if hydra else _options(words, path)


def _overrides(words: Sequence[Said], path: Path) -> Iterator[ConfigEntry]:
    """Yields Hydra's overrides."""
    numbers = iter(range(len(words)))
    for number in numbers:
        said = words[number]
        option, equals, value = said.text.partition("=")
        if said.text in RESTS:
            yield ConfigEntry(REST, None, said.line)
        elif option in _CONFIG_NAMES:
            if not equals and number + 1 < len(words):
                value = words[next(numbers)].text
            yield ConfigEntry(option, value.strip("'\""), said.line)
        elif found := override_of(said.text, f"{path}, line {said.line}"):
            key, read = found
            leaves = _leaves(read, f"{key}.") if isinstance(read, dict) and read else [(key, read)]
            yield from (ConfigEntry(name, leaf, said.line) for name, leaf in leaves)
        else:
            raise ConfigurationError(
                f"{path}, line {said.line}: {said.text!r} is no override; expected KEY=VALUE or ~KEY"
            )


def _options(words: Sequence[Said], path: Path) -> Iterator[ConfigEntry]:
    """Yields arguments; one without a value is true, and one with several has a list."""
    number = 0
    while number < len(words):
        said = words[number]
        number += 1
        if said.text in RESTS:
            yield ConfigEntry(REST, None, said.line)
            continue
        if not said.text.startswith("--"):
            raise ConfigurationError(f"{path}, line {said.line}: {said.text!r} is no argument; expected --KEY VALUE")
        key, equals, value = said.text[2:].partition("=")
        values = [value] if equals else []
        while not equals and number < len(words) and not _begins(words[number].text):
            values.append(words[number].text)
            number += 1
        if not values:
            yield ConfigEntry(key, True, said.line)
        else:
            read = [_argument(one) for one in values]
            yield ConfigEntry(key, read[0] if len(read) == 1 else read, said.line)


def _argument(text: str) -> Any:
    """Returns the value of an argument; one that is a mapping is written as JSON."""
    if text.startswith("{"):
        try:
            mapping = json.loads(text)
        except ValueError:
            return text
        return mapping or text  # an empty one may be a template of text
    return _scalar(text)


def _begins(word: str) -> bool:
    """Returns whether a word begins something else than a value."""
    return word.startswith("--") or word in RESTS


def _scalar(text: str) -> Any:
    """Returns a value as argument parsers read it: `no` and `on` are texts."""
    plain = text.strip()
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if _NUMBER.fullmatch(plain):
        return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)
    return text


def _with_config(entries: list[ConfigEntry], path: Path) -> list[ConfigEntry]:
    """Returns arguments with those of the file that `--config` names, below them."""
    named = next((entry for entry in entries if entry.key == "config"), None)
    if named is None:
        return entries
    file = path.parent / str(named.value)
    if not file.is_file():
        raise ConfigurationError(
            f"{path}, line {named.line}: config {named.value!r}: there is no such file beside {path.name}"
        )
    tree = parse_yaml(file.read_text(encoding="utf-8"), str(file))
    given = {entry.key for entry in entries}
    return [*entries, *(ConfigEntry(key, value, named.line) for key, value in tree.items() if key not in given)]


def _turned_off(program: Program, entry: ConfigEntry) -> ConfigEntry:
    key = entry.key[3:]
    negated = entry.value is True and entry.key.startswith(("no_", "no-"))
    return (
        ConfigEntry(key, False, entry.line)
        if negated and program.knows(key) and not program.knows(entry.key)
        else entry
    )


def _present(program: Program, entries: Sequence[ConfigEntry], path: Path) -> tuple[ConfigEntry, ...]:
    """Returns the keys, without the `no_` that turns one off. Checks that each is given once, whatever its name's version."""
    entries = [_turned_off(program, entry) for entry in entries]
    lines = dict[str, ConfigEntry]()
    for entry in entries:
        name = program.present(entry.key).removeprefix(DELETES)
        if name in lines:
            raise ConfigurationError(f"{path}, line {entry.line}: {_twice(entry, lines[name])}; keep one of them")
        lines[name] = entry
    return tuple(entries)


def _twice(entry: ConfigEntry, other: ConfigEntry) -> str:
    """Returns in words that two entries are of one key."""
    called = "" if other.key == entry.key else f", as {other.key}"
    if other.line == entry.line:
        return f"{entry.key} is given twice{called and f'{called} as well'}"
    return f"{entry.key} was already given on line {other.line}{called}"
