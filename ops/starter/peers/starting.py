"""Begins a run from a peer's file: reads it, looks at data and model if they are on this machine, and writes the spec.

Consumes paths and the options of `yatt init`. Writes `NAME.yaml`, and `reward.py` if asked for one; never replaces a file.
Raises `ConfigurationError`, and `DataError` for rows that cannot be read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ops.starter.lengths import longest_tokens
from ops.starter.looks import DataLook, ModelLook, look_at_data, look_at_model, source_tree
from ops.starter.peers.files import read_peer_file
from ops.starter.peers.here import on_this_machine
from ops.starter.peers.places import TranslationOptions
from ops.starter.peers.programs import Program, named_program
from ops.starter.peers.refused import refuse_mistakes
from ops.starter.peers.spec_text import spec_text
from ops.starter.peers.translating import Translation, translate
from ops.starter.peers.written import as_written
from ops.starter.recognition.recognised import ObjectiveKind, RecognitionOptions, RewardChoice
from ops.starter.recognition.table import value_of
from ops.starter.repositories import look_at_given_data, look_at_hub_model, names_repository
from ops.starter.texts import REWARDS, part_names
from ops.starter.understanding import SourceMeaning, Understanding, understand
from ops.starter.writing import FUNCTION, NEW, REWARD_FILE, write_whole
from yatt_core.datasets.data_files import training_files
from yatt_core.datasets.rows import read_entries
from yatt_core.errors import ConfigurationError
from yatt_core.hub.settle import Settling
from yatt_core.spec.sections.data import Source
from yatt_core.spec.sections.model import HubModel

PLACING = ("kind", "path", "repo", "revision", "pinned", "subset", "split", "held_out_split")
"""Keys of a source that say which files have its rows."""
HELD_OUT_KEYS = ("held_out_path", "held_out_split")
_SOURCE: TypeAdapter[Any] = TypeAdapter(Source)


@dataclass(frozen=True, slots=True)
class InitOptions:
    """What the options of `yatt init --from` say.

    file: the peer's.
    peer: name of the program; None to tell it from the file.
    data, model: paths that win over those of the file.
    rewards: functions of the user's own; `new` writes a file with one.
    processes: of the peer's run; rows: of the training data.
    settling: how a model of the Hub is fetched, with which rows are recognised; None to fetch nothing.
    here: whether engines and devices are those of this machine, not of the file.
    """

    file: Path
    peer: str | None = None
    data: tuple[Path, ...] = ()
    split: str | None = None
    subset: str | None = None
    model: Path | None = None
    rewards: tuple[str, ...] = ()
    prompt_field: str | None = None
    answer_field: str | None = None
    name: str | None = None
    processes: int | None = None
    rows: int | None = None
    settling: Settling | None = None
    here: bool = False


@dataclass(frozen=True, slots=True)
class InitResult:
    """What was written.

    paths: the spec first.
    meaning: what the rows were recognised as; None if they are not on this machine.
    """

    paths: tuple[Path, ...]
    translation: Translation
    meaning: Understanding | None


def start_from(folder: Path, wanted: InitOptions) -> InitResult:
    """Writes a spec that means the same as a peer's file, and returns it with the lists.

    folder: where the files are written.
    """
    peer = None if wanted.peer is None else named_program(wanted.peer)
    program, said = read_peer_file(wanted.file, peer)
    options = TranslationOptions(
        folder=wanted.file.parent,
        model=None if wanted.model is None else _named(wanted.model),
        sources=tuple({"kind": "jsonl", "path": str(path)} for path in wanted.data),
        rewarded=bool(wanted.rewards),
        processes=wanted.processes,
        count_rows=lambda sources: 1,
    )
    place = str(wanted.file)
    planned = _with_options(translate(program, said, place, options), wanted)
    network = _network(planned.tree["model"], wanted)
    meaning = _meaning(planned, network, program, wanted)
    if wanted.data and meaning is not None:
        found = tuple(_recognised(source, {}) for source in meaning.sources)
        options = replace(options, sources=found)
    options = replace(
        options,
        count_rows=_counting(wanted, meaning),
        positions=None if network is None else network.positions or math.inf,
        longest=lambda: _longest(meaning, network),
    )
    translation = translate(program, said, place, options)
    of_file = translation.tree["data"]["sources"]
    translation = _with_options(translation, wanted)
    if wanted.here:
        translation = on_this_machine(translation, network)
    tree = dict(translation.tree)
    if meaning is not None:
        given = [{} if wanted.data else source for source in tree["data"]["sources"]]
        merged = [_recognised(source, tree_of) for source, tree_of in zip(meaning.sources, given, strict=True)]
        tree["data"] = {**tree["data"], "sources": merged}
    name = _name(wanted, tree)
    texts = dict[Path, str]()
    if program.learns == "rl":
        tree = _rewarded(tree, wanted, meaning, folder)
        if NEW in wanted.rewards:
            texts[folder / REWARD_FILE] = _reward_text(meaning)
    translation = replace(translation, tree={**tree, "name": name})
    translation = as_written(translation, of_file, wanted.name is not None)
    refuse_mistakes(translation, place, wanted.name is not None)
    texts = {folder / f"{name}.yaml": spec_text(name, folder, translation, wanted.file.name), **texts}
    write_whole(folder, texts)
    return InitResult(tuple(texts), translation, meaning)


def _with_options(translation: Translation, wanted: InitOptions) -> Translation:
    """Returns a translation whose sources are read as options say, which win over the file."""
    if wanted.data:
        return translation  # they are recognised with these options
    sources = [_read_as(source, wanted) for source in translation.tree["data"]["sources"]]
    return replace(translation, tree={**translation.tree, "data": {**translation.tree["data"], "sources": sources}})


def _read_as(source: Mapping[str, Any], wanted: InitOptions) -> dict[str, Any]:
    read = dict(source)
    for key, value in (("split", wanted.split), ("subset", wanted.subset)):
        if value is None:
            continue
        if source["kind"] not in ("hub", "huggingface"):
            raise ConfigurationError(
                f"--{key} {value}: {source['path']} is not a folder; name the file of the split with --data"
            )
        read[key] = value
    if wanted.prompt_field is not None:
        read.pop("prompt_template", None)
        read["prompt_field"] = wanted.prompt_field
    if wanted.answer_field is not None:
        read["answer_field"] = wanted.answer_field
    return read


def _named(model: Path) -> dict[str, Any]:
    """Returns the model that an option names: a folder, or a repository of the Hub."""
    if names_repository(model):
        return {"kind": "hub", "repo": str(model)}
    return {"kind": "folder", "path": str(model.resolve())}


def _name(wanted: InitOptions, tree: Mapping[str, Any]) -> str:
    """Returns the run's name: that of the option, or of the file, in the form of a run's name."""
    if wanted.name is not None:
        return wanted.name
    plain = re.sub(r"[^a-z0-9]+", "-", str(tree.get("name") or wanted.file.stem).lower()).strip("-")[:40].rstrip("-")
    return plain or "run"


def _meaning(
    planned: Translation, network: ModelLook | None, program: Program, wanted: InitOptions
) -> Understanding | None:
    """Returns what the rows mean, if they are on this machine.

    network: what is known of the model; None if its files are not here.
    """
    if network is None:
        if wanted.data:
            model = planned.tree["model"]
            named = model.get("path") or model.get("repo")
            raise ConfigurationError(
                f"--data: its rows are recognised with the model, and {named} is no folder here; name one with --model"
            )
        return None
    objective = ObjectiveKind(program.learns)
    looks = [_look(path, objective, wanted) for path in wanted.data] or _looks(planned, objective)
    if not looks:
        return None
    own = bool(wanted.rewards) or "rewards" in planned.tree
    asked = RecognitionOptions(wanted.prompt_field, wanted.answer_field, objective, own)
    return understand(looks, network, asked)


def _network(model: Mapping[str, Any], wanted: InitOptions) -> ModelLook | None:
    """Returns what the model is, if its files are on this machine; those of a repository are fetched if they are asked for."""
    if model["kind"] == "folder":
        return look_at_model(Path(model["path"])) if Path(model["path"]).is_dir() else None
    if wanted.settling is None or not (wanted.data or wanted.here):
        return None
    return look_at_hub_model(HubModel.model_validate(model), wanted.settling)


def _look(path: Path, objective: ObjectiveKind, wanted: InitOptions) -> DataLook:
    """Returns a look at data that an option names."""
    if wanted.settling is None:
        return look_at_data(path, wanted.split, wanted.subset, objective)
    return look_at_given_data(
        given=path, split=wanted.split, subset=wanted.subset, objective=objective, settling=wanted.settling
    )


def _looks(planned: Translation, objective: ObjectiveKind) -> list[DataLook]:
    """Returns looks at the file's own data; empty if some of it is not on this machine."""
    sources = planned.tree["data"]["sources"]
    if not all("path" in source and Path(source["path"]).exists() for source in sources):
        return []
    return [look_at_data(Path(one["path"]), one.get("split"), one.get("subset"), objective) for one in sources]


def _recognised(source: SourceMeaning, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a source with what was recognised in its rows, below what the peer's file says of them.

    given: the source as the file has it; its keys count if the rows have them.
    """
    look = source.look
    kept = {key: value for key, value in given.items() if key not in ("kind", "path") and _in_rows(key, value, look)}
    repository = look.place.repository
    named = {"path": str(look.path.resolve())} if repository is None else {"repo": repository.repo}
    place = {"kind": look.place.kind, **named, **look.place.keys}
    recognised = dict(source.recognised.source)
    if "prompt_template" in kept or (kept.get("prompt_field") and "prompt_template" in recognised):
        recognised = {key: value for key, value in recognised.items() if key not in ("prompt_field", "prompt_template")}
        kept.setdefault("prompt_field", None)
    if not any(key in given for key in HELD_OUT_KEYS):
        recognised.update(
            {
                key: str(Path(value).resolve()) if key == "held_out_path" else value
                for key, value in source.held_out.items()
            }
        )
    return {**place, **recognised, **kept}


def _in_rows(key: str, value: Any, look: DataLook) -> bool:
    """Returns whether a key of a source fits rows."""
    if not key.endswith("_field"):
        return True
    return isinstance(value, str) and any(value_of(row, value) is not None for row in look.rows)


def _longest(meaning: Understanding | None, network: ModelLook | None) -> tuple[int, int] | None:
    """Returns the tokens of the longest of the first prompts and responses, if rows and model are on this machine."""
    if meaning is None or network is None:
        return None
    return longest_tokens(meaning, "lengths", network)


def _counting(wanted: InitOptions, meaning: Understanding | None) -> Any:
    """Returns a function that counts the rows of sources; None if they are not on this machine."""
    looks = [source.look for source in meaning.sources] if wanted.data and meaning is not None else []

    def count(sources: Sequence[dict[str, Any]]) -> int | None:
        if wanted.rows is not None:
            return wanted.rows
        if looks:
            return sum(_count(source_tree(look.place, {})) for look in looks)
        if not all("path" in source and Path(source["path"]).exists() for source in sources):
            return None
        return sum(_count(_read_as(source, wanted)) for source in sources)

    return count


def _count(tree: Mapping[str, Any]) -> int:
    """Returns the number of rows of a source, whichever of their fields are read."""
    keys = {key: value for key, value in tree.items() if key in PLACING}
    source = _SOURCE.validate_python(keys)
    return sum(1 for file in training_files(source) for _ in read_entries(file, source))


def _rewarded(tree: dict[str, Any], wanted: InitOptions, meaning: Understanding | None, folder: Path) -> dict[str, Any]:
    """Returns the spec with its rewards: those of the option, of the file, or what follows from the rows."""
    if wanted.rewards:
        written = f"{(folder / REWARD_FILE).resolve()}:{FUNCTION}"
        named = [written if reward == NEW else reward for reward in wanted.rewards]
        return {**tree, "rewards": {"parts": _own_parts(named)}}
    if "rewards" in tree:
        return tree
    if meaning is None or meaning.reward is None:
        raise ConfigurationError(
            f"{wanted.file}: it names no reward that YATT has; name one with --reward FILE:FUNCTION, or write one with "
            "--reward new"
        )
    data = dict(tree["data"])
    if meaning.system_prompt is not None:
        data["system_prompt"] = meaning.system_prompt
    return {**tree, "data": data, "rewards": {"parts": [_part(meaning.reward)]}}


def _own_parts(named: Sequence[str]) -> list[dict[str, Any]]:
    parts = list[dict[str, Any]]()
    for name, reward in zip(part_names(named), named, strict=True):
        file, _, function = reward.rpartition(":")
        own = file.endswith(".py")
        parts.append(
            {"name": name, **({"file": f"{Path(file).resolve()}:{function}"} if own else {"function": reward})}
        )
    return parts


def _part(reward: RewardChoice) -> dict[str, Any]:
    options = {"options": dict(reward.options)} if reward.options else {}
    return {"name": reward.name, "function": reward.function, **options}


def _reward_text(meaning: Understanding | None) -> str:
    name = "without_answers" if meaning is not None and not meaning.has_answers else "with_answers"
    return (REWARDS / f"{name}.py").read_text(encoding="utf-8")
