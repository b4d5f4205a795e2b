"""Rewards of images by models from folders: likeness to the prompt by CLIP, and looks by an aesthetic predictor.

Consumes settings, and the folders of the models that `workload.models` names. Produces the run's own copy of their files, and a
scorer over it, which sees the pixels that are stored for people. Scores depend on an image and its prompt alone, bit for bit,
whatever the batch. Weights are read from safetensors only.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.functional import linear

from yatt_core.digests import path_digest
from yatt_core.errors import ConfigurationError
from yatt_core.models.loading import clip_bytes
from yatt_core.regular_files import check_regular, read_object
from yatt_core.section import SpecModel
from yatt_core.workloads.diffusion.clip import ClipVectors, in_batches

MODELS = "workload.models"
HEAD = "head.safetensors"
SCORER = "scorer"
"""The folder of a run's inputs with a scorer's files, and its name among the facts of a state."""
FACTS = "scorer.json"
GREY = 128
GREY_SIDE = 16
"""Side of the images with which a scorer is tried out, in pixels: it takes any."""
COPIED = (".json", ".txt", ".safetensors")
"""Ends of the names of the files that a model consists of."""
_LAYER = re.compile(r"(?:(?:.*\.)?(\d+)\.)?(weight|bias)")


class ShapeRule(SpecModel):
    """The rule of the task of shapes."""

    kind: Literal["shapes"] = "shapes"


class ClipReward(SpecModel):
    """The cosine of the angle between an image and its prompt, from -1 to 1, by CLIP (arXiv 2103.00020, 2104.08718)."""

    kind: Literal["clip"]
    model: str
    """The name in `workload.models` of a folder with a CLIPModel of transformers, its tokenizer and preprocessor_config.json."""


class AestheticReward(SpecModel):
    """What a head says of an image's unit vector by CLIP, as in the aesthetic predictor of LAION (arXiv 2210.08402)."""

    kind: Literal["aesthetic"]
    model: str
    """The name in `workload.models` of a folder with a CLIPModel or a CLIPVisionModelWithProjection and
    preprocessor_config.json."""
    head: str | None = None
    """The name in `workload.models` of a folder whose only safetensors file is the head; `null`: it is `head.safetensors` in the
    folder of the model. A head is linear layers by number, such as `layers.0.weight` and `layers.0.bias`, the last with one
    output."""
    activation: Literal["none", "relu"] = "none"
    """What is between the head's layers; LAION's predictor has nothing there."""


RewardSettings = Annotated[ShapeRule | ClipReward | AestheticReward, Field(discriminator="kind")]


class ImageScorer(Protocol):
    """Says how good images are, of which there is at least one."""

    def __call__(self, pixels: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Returns scores, [B], float32.

        pixels: [B, height, width, 3], uint8.
        """
        ...


class ClipScorer:
    """Implements `ImageScorer` for `ClipReward`."""

    def __init__(self, folder: Path) -> None:
        self._clip = ClipVectors(folder, MODELS)
        if not self._clip.knows_texts:
            raise ConfigurationError(
                f"{MODELS}: {folder}: is a vision tower alone; expected a CLIPModel, which knows prompts"
            )

    def __call__(self, pixels: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """See `ImageScorer`."""
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        asked = self._clip.prompts(tuple(places))[[places[prompt] for prompt in prompts]]
        pairs = torch.stack([self._clip.images(pixels), asked], 1)
        return in_batches(lambda each: each.prod(1).sum(1), pairs)


class AestheticScorer:
    """Implements `ImageScorer` for `AestheticReward`."""

    def __init__(self, folder: Path, head: Path, settings: AestheticReward) -> None:
        self._clip = ClipVectors(folder, MODELS)
        self._layers = read_head(head)
        self._activation = settings.activation

    def __call__(self, pixels: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """See `ImageScorer`."""
        vectors = self._clip.images(pixels)
        if vectors.shape[1] != self._layers[0].weight.shape[1]:
            raise ConfigurationError(
                f"{MODELS}: {HEAD}: takes vectors of {self._layers[0].weight.shape[1]} numbers; the model has {vectors.shape[1]}"
            )
        return in_batches(self._scores, vectors)

    def _scores(self, vectors: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self._layers):
            if number and self._activation == "relu":
                vectors = vectors.relu()
            vectors = linear(vectors, layer.weight, layer.bias)
        return vectors[:, 0]


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A linear layer.

    weight: [outputs, inputs].
    bias: [outputs].
    """

    weight: torch.Tensor
    bias: torch.Tensor


def read_head(path: Path) -> tuple[HeadLayer, ...]:
    """Returns the layers in a file, by their number. Raises `ConfigurationError` unless they lead to a single output."""
    check_regular(path, MODELS)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"{MODELS}: {path}: cannot be read: {error}") from None
    layers: dict[int, dict[str, torch.Tensor]] = {}
    names: dict[tuple[int, str], str] = {}
    for name, tensor in tensors.items():
        parts = _LAYER.fullmatch(name)
        if parts is None:
            raise ConfigurationError(
                f"{MODELS}: {path}: {name}: expected linear layers alone, such as layers.0.weight and layers.0.bias"
            )
        place = (int(parts[1] or 0), parts[2])
        if place in names:
            raise ConfigurationError(
                f"{MODELS}: {path}: {names[place]} and {name} are both the {place[1]} of layer {place[0]}; expected one"
            )
        names[place] = name
        # Copied: what is memory-mapped lies where it happens to lie, which changes the last bits.
        layers.setdefault(place[0], {})[place[1]] = tensor.to(torch.float32, copy=True)
    found = []
    width = None
    for number in sorted(layers):
        weight = layers[number].get("weight")
        bias = layers[number].get("bias")
        if weight is None or weight.dim() != 2 or (width is not None and weight.shape[1] != width):
            given = "none" if weight is None else list(weight.shape)
            raise ConfigurationError(
                f"{MODELS}: {path}: layer {number}: expected a weight [outputs, {width or 'inputs'}] (given: {given})"
            )
        width = weight.shape[0]
        if bias is None or bias.shape != (width,):
            raise ConfigurationError(f"{MODELS}: {path}: layer {number}: expected a bias [{width}]")
        found.append(HeadLayer(weight, bias))
    if width != 1:
        raise ConfigurationError(f"{MODELS}: {path}: its last layer has {width or 0} outputs; expected 1")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class KeptScorer:
    """A scorer of a run's own.

    score: says how good images are.
    facts: its kind, and the digest of its files.
    """

    score: ImageScorer
    facts: Mapping[str, Any]


def check_scorer(reward: RewardSettings, models: Mapping[str, Path], prompts: Sequence[str]) -> None:
    """Makes a scorer of the folders that a spec names, has it score a grey image for each prompt, and drops it.

    Raises `ConfigurationError` for a model that `workload.models` does not name, for a folder that lacks a part and for parts
    that do not go together, and `DataError` for a prompt that the model cannot read.
    """
    if isinstance(reward, ShapeRule):
        return
    scorer = make_scorer(reward, _folder_of(reward.model, models), _head_of(reward, models))
    scorer(torch.full((len(prompts), GREY_SIDE, GREY_SIDE, 3), GREY, dtype=torch.uint8), prompts)


def scorer_bytes(reward: RewardSettings, models: Mapping[str, Path]) -> int:
    """Returns the bytes of the model that rewards, whose weights are not read; 0 for the rule.

    Raises `ConfigurationError` for a model that `workload.models` does not name, or that is no CLIP model.
    """
    return 0 if isinstance(reward, ShapeRule) else clip_bytes(str(_folder_of(reward.model, models)))


def keep_scorer(reward: RewardSettings, models: Mapping[str, Path], prompts: Sequence[str], inputs: Path) -> None:
    """Copies a scorer's files into a run's inputs, with their digest; nothing for the rule. Raises as `check_scorer` does."""
    check_scorer(reward, models, prompts)
    if isinstance(reward, ShapeRule):
        return
    folder = inputs / SCORER
    folder.mkdir()
    for path in sorted(_folder_of(reward.model, models).iterdir()):
        if path.suffix in COPIED and path.is_file():
            shutil.copyfile(path, folder / path.name)
    if isinstance(reward, AestheticReward) and reward.head is not None:
        shutil.copyfile(_head_of(reward, models), folder / HEAD)
    text = json.dumps({"kind": reward.kind, "sha256": path_digest(folder)}, indent=2)
    (inputs / FACTS).write_text(text + "\n", encoding="utf-8")


def kept_scorer(reward: RewardSettings, inputs: Path) -> KeptScorer | None:
    """Returns the scorer that a run's inputs keep; None for the rule."""
    if isinstance(reward, ShapeRule):
        return None
    folder = inputs / SCORER
    return KeptScorer(make_scorer(reward, folder, folder / HEAD), read_object(inputs / FACTS, SCORER))


def make_scorer(reward: ClipReward | AestheticReward, folder: Path, head: Path) -> ImageScorer:
    """Returns the scorer in a folder. Raises `ConfigurationError` for a folder that lacks a part.

    head: an aesthetic predictor's.
    """
    if isinstance(reward, ClipReward):
        return ClipScorer(folder)
    return AestheticScorer(folder, head, reward)


def _folder_of(name: str, models: Mapping[str, Path]) -> Path:
    if name not in models:
        known = ", ".join(sorted(models)) or "none"
        raise ConfigurationError(f"workload.settings: reward: {MODELS} has no {name!r}; it has {known}")
    return models[name]


def _head_of(reward: ClipReward | AestheticReward, models: Mapping[str, Path]) -> Path:
    """Returns the file of a head, which need not exist."""
    if isinstance(reward, ClipReward) or reward.head is None:
        return _folder_of(reward.model, models) / HEAD
    folder = _folder_of(reward.head, models)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise ConfigurationError(f"{MODELS}: {folder}: has {len(found)} safetensors files; expected one, the head")
    return found[0]
