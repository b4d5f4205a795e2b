"""The judges' models among a run's inputs: their folders are checked and recorded.

Consumes the spec. Produces the manifest's entries about all judges with a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.inputs.identity import judge_models
from yatt_core.inputs.manifest import JUDGES, Facts
from yatt_core.judges.codec import open_judge_codec
from yatt_core.models.model_folder import check_model_folder, check_model_unchanged, describe_model
from yatt_core.models.reward_folder import open_reward_tokenizer
from yatt_core.secret_references import BlockReader
from yatt_core.spec.rewards.judges import EndpointPart, GenerativePart
from yatt_core.spec.run import RunSpec


def describe_judges(spec: RunSpec) -> Facts:
    """Returns the manifest's entries about the judges' models.

    Raises `ConfigurationError` for folders that cannot be used.
    """
    facts: Facts = {}
    for name, model in judge_models(spec).items():
        with _naming(name):
            described = describe_model(Path(model.path).resolve())
        facts[name] = {"path": described.model_path, "files": dict(described.model_files)}
    return facts


def check_judges(manifest: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` if a folder has changed since the inputs were built."""
    for name, described in manifest.get(JUDGES, {}).items():
        with _naming(name):
            check_model_unchanged(Path(described["path"]), described["files"])


def check_before_start(spec: RunSpec, read_block: BlockReader | None = None) -> None:
    """Raises `ConfigurationError` for a judge whose folder is not a model, or whose API key is not where the spec says.

    read_block: reads a Prefect block, for a key that is in one.
    """
    from yatt_core.judges.endpoint import EndpointJudge

    models = judge_models(spec)
    for part in spec.rewards.judges:
        if isinstance(part, EndpointPart):
            EndpointJudge(part, read_block)  # sends no request yet
        elif part.name in models:
            path = models[part.name].path
            with _naming(part.name):
                check_model_folder(Path(path))
                if isinstance(part, GenerativePart):
                    open_judge_codec(path, part.template, part.max_new_tokens)
                else:
                    open_reward_tokenizer(part, path)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Adds the name of the reward part to the errors raised inside."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"rewards.parts {part!r}: {error}") from None
    except OSError as error:
        raise ConfigurationError(
            f"rewards.parts {part!r}: model.path: {error.filename} cannot be read: {error.strerror}"
        ) from None
