"""Reads a spec: YAML with `extends`, dotted overrides, and errors that name file, key and remedy.

Consumes a YAML file, the files it extends (later ones win, and the file itself wins over all) and `a.b=c`
overrides. Produces a `RunSpec` with absolute paths and the digests of the Python files that it names. Raises
`ConfigurationError` with one line per mistake: unknown keys, wrong values, contradictions between keys that are
sound, files that do not exist, and overrides that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from yatt_core.errors import ConfigurationError
from yatt_core.file_names import nameable
from yatt_core.problems import Problems
from yatt_core.spec.presets import PRESET, preset_tree
from yatt_core.spec.reading.code_digests import with_digests
from yatt_core.spec.reading.documents import described, read_document, with_absolute_paths, with_folder
from yatt_core.spec.reading.layers import Layer, Override, keys_of, lay_over, origin_of
from yatt_core.spec.reading.mistakes import mistakes_in
from yatt_core.spec.reading.named_files import missing_files
from yatt_core.spec.reading.packaged import spec_file
from yatt_core.spec.reading.sound_parts import further_mistakes
from yatt_core.spec.run import RunSpec

EXTENDS = "extends"
ALGORITHM = "algorithm"
PRESET_PLACE = (ALGORITHM, PRESET)
MODEL = "model"
MODEL_PLACE = (MODEL,)


def anything(_: object) -> None:
    """Refuses nothing."""


def load_spec(
    path: Path,
    overrides: Sequence[str] = (),
    with_files: bool = False,
    permit_base: Callable[[Path], None] = anything,
    permit: Callable[[RunSpec], None] = anything,
) -> RunSpec:
    """Returns the spec in a YAML file with overrides applied.

    path: the file, or the name of a package's spec (`PACKAGE:NAME`), in which paths of a workload's settings are relative to the
        working folder.
    with_files: whether the mistakes of a refused spec include files that do not exist.
    permit_base: called with each file that the spec extends, before anything is known of it; raises to refuse it.
    permit: called with the spec before any file that it names is looked at, and with the digests of its code; raises to
        refuse it.
    """
    layers: list[Layer] = []
    problems = Problems()
    tree: Any = None
    folder = path.parent
    with problems.noting():
        file, folder = spec_file(path, Path())
        tree = _read_tree(path=file, folder=folder, above=(), layers=layers, permit_base=permit_base)
    if problems:
        for text in overrides:
            with problems.noting():
                Override.parse(text)
        problems.raise_any()
    return _with_overrides(
        tree=tree,
        overrides=overrides,
        layers=layers,
        origin=str(path),
        with_files=with_files,
        permit=permit,
        folder=folder,
    )


def override_spec(
    spec: RunSpec, overrides: Sequence[str], origin: str, permit: Callable[[RunSpec], None] = anything
) -> RunSpec:
    """Returns a copy of a spec with some values changed.

    origin: the spec's name in error messages.
    permit: as for `load_spec`.
    """
    for text in overrides:
        if keys_of(text) == PRESET_PLACE:
            raise ConfigurationError(
                f"--set {text}: a preset fills in the keys that a spec leaves out, but {origin} has them all; write "
                "--set 'algorithm={preset: ...}' to replace the section"
            )
    return _with_overrides(spec.model_dump(mode="json"), overrides, [], origin, permit=permit)


def spec_of_tree(tree: dict[str, Any], origin: str, folder: Path) -> RunSpec:
    """Returns the spec given as plain values, with the digests of the files that it names.

    origin: the tree's name in error messages.
    folder: what its paths are relative to.
    """
    absolute = with_absolute_paths(tree, folder)
    return _with_overrides(absolute, (), [], origin, with_files=True, folder=folder)


def parse_spec(tree: Any, origin: str) -> RunSpec:
    """Returns the spec given as a tree of plain values.

    origin: the tree's name in error messages.
    """
    return _validate(tree, lambda place: origin)


def _with_overrides(
    tree: Any,
    overrides: Sequence[str],
    layers: list[Layer],
    origin: str,
    with_files: bool = False,
    permit: Callable[[RunSpec], None] = anything,
    folder: Path | None = None,
) -> RunSpec:
    """Returns the spec in a tree with overrides applied.

    folder: what paths in a workload's settings are relative to, if nothing else has said it; None leaves that open.
    """
    problems = Problems()
    unread = list[tuple[str, ...]]()
    for text in overrides:
        unread.append(keys_of(text))
        with problems.noting():
            override = Override.parse(text)
            tree = override.apply(tree)
            layers.append(override.layer())
            unread.pop()
    if folder is not None:
        tree = with_folder(tree, folder)

    def origin_at(place: Sequence[str | int]) -> str:
        return origin_of(layers, place, origin)

    try:
        spec = _validate(tree, origin_at, unread, with_files)
        permit(spec)
        spec = with_digests(spec, origin_at)
        permit(spec)  # again, since it now says which contents of files it means
    except ConfigurationError as error:
        problems.note(error)
    problems.raise_any()
    return spec


def _validate(
    tree: Any,
    origin: Callable[[Sequence[str | int]], str],
    unread: Sequence[tuple[str, ...]] = (),
    with_files: bool = False,
) -> RunSpec:
    """Returns the spec in a tree.

    unread: places of keys whose values could not be read.

    Raises `ConfigurationError` with one line per mistake.
    """
    for place, filled in ((PRESET_PLACE, _with_preset), (MODEL_PLACE, _with_model)):
        try:
            tree = filled(tree)
        except ConfigurationError as error:
            raise ConfigurationError(f"{origin(place)}: {'.'.join(place)}: {error}") from None
    try:
        return RunSpec.model_validate(tree)
    except ValidationError as error:
        found = list(mistakes_in(error, RunSpec))
    if unread and all(not mistake.place for mistake in found):
        found = []  # contradictions that may be due to a key that could not be read
    found += further_mistakes(tree, found, unread)
    if with_files:
        found += missing_files(tree)
    lines = [f"{origin(mistake.place)}: {mistake}" for mistake in found]
    raise ConfigurationError("\n".join(lines)) from None


def _with_preset(tree: Any) -> Any:
    """Returns a tree with the preset of its algorithm, if it names one, below the keys that it has itself."""
    section = tree.get(ALGORITHM) if isinstance(tree, dict) else None
    if not isinstance(section, dict) or PRESET not in section:
        return tree
    own = {key: value for key, value in section.items() if key != PRESET}
    return {**tree, ALGORITHM: lay_over(preset_tree(section[PRESET]), own)}


def _with_model(tree: Any) -> Any:
    """Refuses a name of the policy's model that stands for nothing; others are sections by now."""
    named = tree.get(MODEL) if isinstance(tree, dict) else None
    if isinstance(named, str):
        raise ConfigurationError(
            f"{named!r:.120} is neither a folder that exists nor the name of a repository on the Hub; expected a path, "
            "ORGANISATION/NAME, or a section with its kind"
        )
    return tree


def _read_tree(
    path: Path, folder: Path, above: tuple[Path, ...], layers: list[Layer], permit_base: Callable[[Path], None]
) -> Any:
    """Returns a file's tree merged over the trees of the files it extends; appends each file's own tree to `layers`.

    folder: what paths in its settings of a workload are relative to.
    above: the files that extend this one.
    """
    try:
        extended = path.resolve() in (other.resolve() for other in above)
    except (OSError, RuntimeError):
        raise ConfigurationError(f"{path}: a link that leads to itself; expected a file") from None
    if extended:
        raise ConfigurationError(f"{path}: extends itself: {' -> '.join(str(other) for other in (*above, path))}")
    tree = read_document(path)
    bases = _bases(tree, path, permit_base)
    tree = with_folder(tree, folder)
    merged: Any = {}
    for base, base_folder in bases:
        found = _read_tree(path=base, folder=base_folder, above=(*above, path), layers=layers, permit_base=permit_base)
        merged = lay_over(merged, found)
    layers.append(Layer(str(path), tree))
    return lay_over(merged, tree)


def _bases(tree: dict[str, Any], path: Path, permit_base: Callable[[Path], None]) -> list[tuple[Path, Path]]:
    """Removes `extends` from a file's tree and returns the files that it names, each with the folder of its settings.

    Raises `ConfigurationError` if one is missing.
    """
    if EXTENDS not in tree:
        return []
    given = tree.pop(EXTENDS)
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"{path}: {EXTENDS}: expected a file name or a list of file names (given: {described(given)})"
        )
    try:
        bases = [spec_file(Path(nameable(name)), path.parent) for name in names]
    except ValueError as error:
        raise ConfigurationError(f"{path}: {EXTENDS}: {error}") from None
    for base, _ in bases:
        permit_base(base)
    if missing := [base for base, _ in bases if not base.is_file()]:
        raise ConfigurationError("\n".join(f"{path}: {EXTENDS}: file {base} does not exist" for base in missing))
    return bases
