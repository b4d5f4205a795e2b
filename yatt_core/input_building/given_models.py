"""Models given to a run in addition to its policy and judges: the teacher of distillation, the initial critic.

Consumes the spec and the run's inputs. Produces the manifest's entry about the folders. The models must share
the policy's tokenizer, have room for its sequences, and stay unchanged throughout the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.inputs.identity import given_models
from yatt_core.inputs.manifest import GIVEN, LONGEST, Facts
from yatt_core.models.config_file import read_config
from yatt_core.models.model_folder import (
    check_model_folder,
    check_model_unchanged,
    count_parameters,
    describe_model,
    positions_of,
)
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import GivenFolder

POLICY_KEY = "model.path: "
"""The key with which errors about a model folder start."""


def describe_given(spec: RunSpec, policy: Path) -> Facts:
    """Returns the manifest's entry about the folders of the given models.

    policy: folder of the policy's model.

    Raises `ConfigurationError` for a folder that cannot be used, or whose tokenizer differs from the policy's.
    """
    facts: Facts = {}
    for key, model in given_models(spec).items():
        with _naming(key):
            described = describe_model(Path(model.path).resolve())
            _check_tokenizer(Path(described.model_path), policy)
            facts[key] = {"path": described.model_path, "files": dict(described.model_files)}
    return facts


def check_given(spec: RunSpec, manifest: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` if a folder has changed since the inputs were built, or has too few positions."""
    for key, model in given_models(spec).items():
        with _naming(key):
            folder = Path(model.path).resolve()
            check_model_unchanged(folder, manifest[GIVEN][key]["files"])
            longest = manifest[LONGEST]["tokens"] + spec.rollout.max_response_tokens
            positions = positions_of(read_config(folder))
            if positions is not None and positions < longest:
                raise ConfigurationError(
                    f"{POLICY_KEY}{folder} has {positions} positions, but prompt and response may have {longest} "
                    "tokens; lower rollout.max_new_tokens, or use another model"
                )


def check_before_start(spec: RunSpec) -> None:
    """Raises `ConfigurationError` for folders that are recognisably unusable before a run is created."""
    for key, model in given_models(spec).items():
        with _naming(key):
            check_model_folder(Path(model.path))
            count_parameters(Path(model.path))
            if isinstance(spec.model, GivenFolder):
                _check_tokenizer(Path(model.path), Path(spec.model.path))


def _check_tokenizer(folder: Path, policy: Path) -> None:
    found, wanted = (load_tokenizer(place).get_vocab() for place in (folder, policy))
    if other := sorted(token for token in found.keys() | wanted.keys() if found.get(token) != wanted.get(token)):
        raise ConfigurationError(
            f"{POLICY_KEY}{folder}: its tokenizer is not the policy's: {len(other)} tokens differ, such as "
            f"{other[0]!r}; expected a model with the same tokenizer"
        )


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Adds the spec key of the folder to the errors raised inside."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}.path: {str(error).removeprefix(POLICY_KEY)}") from None
    except OSError as error:
        raise ConfigurationError(f"{key}.path: {error.filename} cannot be read: {error.strerror}") from None
