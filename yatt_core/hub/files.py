"""Which files of a repository a run needs: of a model its weights and small files, of a dataset the files of its splits.

Pure. Consumes the repository's list of files and, for a dataset, the metadata in its README.md. Produces names of files.
Raises `ConfigurationError` for a repository without what is asked for; the messages say what it has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from yatt_core.datasets.content import COMPRESSED
from yatt_core.datasets.data_files import DESCRIPTIONS, FORMATS, by_split_of, format_of
from yatt_core.errors import ConfigurationError
from yatt_core.models.model_folder import PICKLE_SUFFIXES, SMALL_SUFFIXES, TEMPLATES, WEIGHTS, WEIGHTS_INDEX

SAFETENSORS = ".safetensors"
CARD = "README.md"
LARGEST_CARD = 4 << 20
"""Maximum size of a README.md whose metadata are read, in bytes."""
LONGEST_PATTERN = 255
"""Maximum characters of a pattern of names."""
CONVERTED = "refs/convert/parquet"
"""The revision in which the Hub keeps its own copy of a dataset in Parquet."""
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_READ_KEYS = frozenset({"config_name", "data_files", "data_dir", "default", "description", "features", "version"})
"""Keys of a configuration that say which files it has, or nothing about how they are read."""


@dataclass(frozen=True, slots=True, order=True)
class HubFile:
    """A file of a repository at a commit.

    size: in bytes.
    digest: `sha256:HEX` of the contents of a large file, `git:HEX`, the name of its blob, of any other.
    """

    path: str
    size: int
    digest: str


def model_files(files: Sequence[HubFile], repo: str) -> list[HubFile]:
    """Returns the files of a model: config, tokenizer, templates and weights; other formats of the weights are left out."""
    top = [file for file in files if PurePosixPath(file.path).parent.as_posix() in (".", TEMPLATES)]
    weights = [file for file in top if is_weights(file) and file.path == PurePosixPath(file.path).name]
    names = {file.path for file in weights}
    if any(file.path == WEIGHTS_INDEX for file in top):
        weights = [file for file in weights if _SHARD.fullmatch(file.path)]
    elif WEIGHTS in names:
        weights = [file for file in weights if file.path == WEIGHTS]
    if not weights:
        pickles = sorted(file.path for file in top if PurePosixPath(file.path).suffix in PICKLE_SUFFIXES)
        found = f"only pickles ({pickles[0]}), which can execute code" if pickles else "none"
        raise ConfigurationError(
            f"{repo} has no weights in {SAFETENSORS} files; it has {found}. Name a revision or a repository that has them"
        )
    return sorted([*weights, *(file for file in top if PurePosixPath(file.path).suffix in SMALL_SUFFIXES)])


def is_weights(file: HubFile) -> bool:
    """Returns True for a file of tensors."""
    return PurePosixPath(file.path).suffix == SAFETENSORS


def dataset_files(
    files: Sequence[HubFile], card: str, repo: str, subset: str | None, splits: Sequence[str]
) -> dict[str, list[str]]:
    """Returns the names of the files of some splits, in the order in which they are read.

    card, subset: as for `splits_of`.
    """
    by_split = splits_of(files, card, repo, subset)
    found = {}
    for split in splits:
        if not by_split.get(split):
            known = ", ".join(sorted(split for split, each in by_split.items() if each)) or "none"
            raise ConfigurationError(f"{repo} has no split {split!r}; it has {known}")
        formats = sorted({str(format_of(Path(name))) for name in by_split[split]})
        if len(formats) > 1:
            raise ConfigurationError(
                f"{repo}: the files of split {split!r} have several formats ({', '.join(formats)}); expected a single one"
            )
        found[split] = by_split[split]
    return found


def splits_of(files: Sequence[HubFile], card: str, repo: str, subset: str | None) -> dict[str, list[str]]:
    """Returns the names of the files of each split.

    card: text of the repository's README.md; empty if it has none.
    subset: a configuration of the README.md or, where that has none, a folder; None for the default or only one.
    """
    names = sorted(file.path for file in files if _has_rows(file.path))
    if configurations := _configurations(card, repo):
        return _configured(configurations, names, repo, subset)
    return _by_names(names, files, repo, subset)


def _has_rows(name: str) -> bool:
    path = Path(name)
    visible = not any(part.startswith((".", "_")) for part in path.parts)
    return visible and path.name not in DESCRIPTIONS and format_of(path) is not None


def _by_names(names: Sequence[str], files: Sequence[HubFile], repo: str, subset: str | None) -> dict[str, list[str]]:
    """Returns the files of each split by what their names indicate, as for a dataset's folder on this machine."""
    base = ""
    if subset is not None:
        bases = [f"{subset}/", f"data/{subset}/"]
        base = next((base for base in bases if any(name.startswith(base) for name in names)), "")
        within = [name for name in names if name.startswith(base)]
        if not base:
            folders = sorted({PurePosixPath(name).parent.as_posix() for name in names} - {"."})
            raise ConfigurationError(
                f"{repo} has no configuration {subset!r}; its folders with rows: {', '.join(folders) or 'none'}"
            )
        names = within
    if not names:
        scripts = [file.path for file in files if file.path == f"{repo.rpartition('/')[2]}.py"]
        formats = f"{', '.join(FORMATS)}; texts also with {' or '.join(COMPRESSED)}"
        script = f"; its loading script {scripts[0]} is not run, try revision {CONVERTED}" if scripts else ""
        raise ConfigurationError(f"{repo} has no files with rows ({formats}){script}")
    by_split = by_split_of({name: Path(name.removeprefix(base)) for name in names})
    for split, found in by_split.items():
        folders = sorted({PurePosixPath(name).parent.as_posix() for name in found})
        if len(folders) > 1 and subset is None:
            raise ConfigurationError(
                f"{repo}: the files of split {split!r} are in {len(folders)} folders, {', '.join(folders[:20])}; name one of "
                "them with subset"
            )
    return by_split


def _configurations(card: str, repo: str) -> list[Mapping[str, Any]]:
    """Returns the configurations in a README.md's metadata; empty if there are none."""
    matter = _FRONT_MATTER.match(card)
    if matter is None:
        return []
    try:
        metadata = YAML(typ="safe", pure=True).load(matter.group(1))
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{repo}: the metadata in {CARD} are not valid YAML: {error}") from None
    configs = metadata.get("configs") if isinstance(metadata, Mapping) else None
    if configs is None:
        return []
    if not isinstance(configs, list) or not all(
        isinstance(each, Mapping) and each.get("config_name") for each in configs
    ):
        raise ConfigurationError(f"{repo}: {CARD}: configs: expected a list of configurations with a config_name")
    return configs


def _configured(
    configurations: Sequence[Mapping[str, Any]], names: Sequence[str], repo: str, subset: str | None
) -> dict[str, list[str]]:
    """Returns the files of each split of a configuration of the README.md."""
    known = {str(each["config_name"]): each for each in configurations}
    defaults = [name for name, each in known.items() if len(known) == 1 or name == "default" or each.get("default")]
    if subset is None and len(defaults) != 1:
        raise ConfigurationError(
            f"{repo} has {len(known)} configurations and no default one; name one with subset: {', '.join(sorted(known))}"
        )
    wanted = defaults[0] if subset is None else subset
    if wanted not in known:
        raise ConfigurationError(f"{repo} has no configuration {wanted!r}; it has {', '.join(sorted(known))}")
    chosen = known[wanted]
    if others := sorted(chosen.keys() - _READ_KEYS):
        raise ConfigurationError(
            f"{repo}: configuration {wanted!r} changes how its files are read ({', '.join(others)}), which YATT does not do; "
            f"try revision {CONVERTED}, or another configuration"
        )
    base = str(chosen.get("data_dir") or "").strip("/")
    within = [name for name in names if not base or name.startswith(f"{base}/")]
    given = chosen.get("data_files")
    if given is None:
        return by_split_of({name: Path(name.removeprefix(f"{base}/")) for name in within})
    return {
        split: [name for pattern in patterns for name in _matching(pattern, base, within)]
        for split, patterns in _patterns(given, repo).items()
    }


def _patterns(given: Any, repo: str) -> dict[str, list[str]]:
    """Returns the patterns of the files of each split, from any form that metadata may have."""
    found = _read_patterns(given)
    sound = found is not None and all(
        isinstance(pattern, str) and len(pattern) <= LONGEST_PATTERN for each in found.values() for pattern in each
    )
    if found is None or not sound:
        raise ConfigurationError(
            f"{repo}: {CARD}: data_files: expected patterns of names, or a list of splits with a path each"
        )
    return found


def _read_patterns(given: Any) -> dict[str, list[Any]] | None:
    match given:
        case str():
            return {"train": [given]}
        case [*items] if all(isinstance(item, str) for item in items):
            return {"train": items}
        case [*items] if all(isinstance(item, Mapping) and {"split", "path"} <= item.keys() for item in items):
            return {str(item["split"]): _listed(item["path"]) for item in items}
        case Mapping():
            return {str(key): _listed(value) for key, value in given.items()}
    return None


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _matching(pattern: str, base: str, names: Sequence[str]) -> list[str]:
    whole = f"{base}/{pattern}" if base else pattern
    parts = PurePosixPath(whole.removeprefix("./")).parts
    return [name for name in names if _matches(PurePosixPath(name).parts, parts)]


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Returns True if the parts of a name match those of a pattern: `*` stays within a part, `**` stands for any number of them.

    Takes at most as many steps as both have parts, multiplied, whatever the pattern is.
    """
    reached = {0}
    for part in pattern:
        if part == "**":
            reached = set(range(min(reached, default=len(name) + 1), len(name) + 1))
        else:
            reached = {end + 1 for end in reached if end < len(name) and fnmatchcase(name[end], part)}
    return len(name) in reached
