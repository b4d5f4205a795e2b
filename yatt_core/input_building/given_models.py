"""Models that a run is given besides its policy's and its judges': the teacher of distillation, what a critic begins with.

Consumes the spec and the run's inputs; produces what the manifest says of the folders. They have to share the policy's tokenizer,
to have room for its sequences, and to stay as they are as long as the run lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.inputs.identity import given_models
from yatt_core.inputs.manifest import GIVEN, LONGEST, Facts
from yatt_core.models.model_folder import (
    check_model_folder,
    check_model_unchanged,
    count_parameters,
    describe_model,
    positions_of,
    read_config,
)
from yatt_core.models.tokenizer import load_tokenizer
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import ModelFolder

POLICY_KEY = "model.path: "
"""What errors about a model folder begin with."""


def describe_given(spec: RunSpec, policy: Path) -> Facts:
    """What the manifest says of the folders. policy: folder of its model.

    Raises `ConfigurationError` for one that cannot be used, or has another tokenizer than the policy.
    """
    facts: Facts = {}
    for key, model in given_models(spec).items():
        with _naming(key):
            described = describe_model(Path(model.path).resolve())
            _check_tokenizer(Path(described.model_path), policy)
            facts[key] = {"path": described.model_path, "files": dict(described.model_files)}
    return facts


def check_given(spec: RunSpec, manifest: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` where a folder has changed since the inputs were made, or has no room for a longest sample."""
    for key, model in given_models(spec).items():
        with _naming(key):
            folder = Path(model.path).resolve()
            check_model_unchanged(folder, manifest[GIVEN][key]["files"])
            longest = manifest[LONGEST]["tokens"] + spec.rollout.max_response_tokens
            positions = positions_of(read_config(folder))
            if positions is not None and positions < longest:
                raise ConfigurationError(
                    f"{POLICY_KEY}{folder} takes {positions} tokens, prompt and response may be {longest}; lower "
                    "rollout.max_new_tokens, or take another model"
                )


def check_before_start(spec: RunSpec) -> None:
    """Raises `ConfigurationError` for folders that can be seen to be of no use before a run is made."""
    for key, model in given_models(spec).items():
        with _naming(key):
            check_model_folder(Path(model.path))
            count_parameters(Path(model.path))
            if isinstance(spec.model, ModelFolder):
                _check_tokenizer(Path(model.path), Path(spec.model.path))


def _check_tokenizer(folder: Path, policy: Path) -> None:
    found, wanted = (load_tokenizer(place).get_vocab() for place in (folder, policy))
    if other := sorted(token for token in found.keys() | wanted.keys() if found.get(token) != wanted.get(token)):
        raise ConfigurationError(
            f"{POLICY_KEY}{folder}: its tokenizer is not the policy's: {len(other)} tokens differ, such as {other[0]!r}; "
            "right would be a model of the same tokenizer"
        )


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Says which folder an error is about."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{key}.path: {str(error).removeprefix(POLICY_KEY)}") from None
    except OSError as error:
        raise ConfigurationError(f"{key}.path: {error.filename} cannot be read: {error.strerror}") from None
