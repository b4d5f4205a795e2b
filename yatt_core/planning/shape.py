"""The sizes of a dense causal language model, and what follows from them: parameters, operations, cached bytes.

Consumes the spec's model section, or a config.json; produces a `ModelShape`. No weights are read; only if a vision
tower is added to the text model are the tensor sizes in the model's folder read. Raises `UnknownShapeError` for a
model whose shape is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

from yatt_core.errors import ConfigurationError
from yatt_core.regular_files import read_object
from yatt_core.spec.run import RunSpec
from yatt_core.spec.sections.model import (
    GivenFolder,
    ModelConfigFile,
    ModelFromConfig,
    ModelSizes,
    ModelSpec,
    VisionSpec,
)

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")
CHANNELS = 3


class UnknownShapeError(ConfigurationError):
    """A model of a family whose tensors are unknown, or without a config.json that can be read."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A pre-norm transformer with gated feed-forward layers and grouped-query attention (arXiv 2302.13971, 2305.13245).

    biased: queries, keys and values have biases.
    head_norms: queries and keys are normalised.
    tower: parameters of a vision tower with its projector.
    tower_heads: number of the tower's attention heads; 0: there is none, or the number is unknown.
    vocabulary_assumed: the vocabulary is assumed because there is no tokenizer yet.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate: int
    tied: bool
    biased: bool = False
    head_norms: bool = False
    tower: int = 0
    tower_heads: int = 0
    max_positions: int = 0
    vocabulary_assumed: bool = False

    @property
    def query_width(self) -> int:
        """Width of all heads' queries."""
        return self.heads * self.head_size

    @property
    def key_value_width(self) -> int:
        """Width of all heads' keys, and of their values."""
        return self.key_value_heads * self.head_size

    @property
    def embedding_parameters(self) -> int:
        """Parameters of a matrix of vocabulary size: the input embedding, or the output projection."""
        return self.vocabulary * self.hidden

    @property
    def layer_matrices(self) -> int:
        """Parameters of a layer's matrices, which tensor parallelism divides."""
        attention = 2 * self.hidden * (self.query_width + self.key_value_width)
        biases = (self.query_width + 2 * self.key_value_width) if self.biased else 0
        return attention + biases + 3 * self.hidden * self.intermediate

    @property
    def layer_norms(self) -> int:
        """Parameters of a layer's norms, which every device keeps in full."""
        return 2 * self.hidden + (2 * self.head_size if self.head_norms else 0)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones counted once."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * (self.layer_matrices + self.layer_norms) + embeddings + self.hidden + self.tower

    def adapter_parameters(self, rank: int, targets: Iterable[str]) -> int:
        """Returns the parameters of low-rank adapters on these linear layers (arXiv 2106.09685).

        targets: names as in Hugging Face's models; those that dense models do not have count nothing.
        """
        queries = self.hidden + self.query_width
        keys = self.hidden + self.key_value_width
        feed_forward = self.hidden + self.intermediate
        sums = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries} | dict.fromkeys(
            ("gate_proj", "up_proj", "down_proj"), feed_forward
        )
        return self.layers * rank * sum(sums.get(target, 0) for target in set(targets))

    def cached_token_values(self) -> int:
        """Returns how many numbers a context token takes in the key/value cache of all layers."""
        return 2 * self.layers * self.key_value_width

    def forward_flops(self, context: float) -> float:
        """Returns the floating-point operations of a token's forward pass (arXiv 2001.08361).

        Each parameter of a matrix takes two operations (except in the lookup of the input embedding), and each
        value attended to takes four.

        context: number of tokens attended to.
        """
        lookup = 0 if self.tied else self.embedding_parameters
        return 2.0 * (self.parameters - lookup) + 4.0 * self.layers * self.query_width * context


def shape_of(spec: RunSpec, own_vocabulary: int) -> ModelShape:
    """Returns the shape of a spec's policy.

    own_vocabulary: assumed vocabulary of a tokenizer that is yet to be trained on the run's prompts.
    """
    if not spec.has.language_model:
        raise UnknownShapeError(
            f"workload.kind: {spec.workload.title} has a model of its own, whose shape is not known; `yatt plan` asks the class "
            "what it needs"
        )
    return shape_of_model(spec.model, own_vocabulary)


def shape_of_model(model: ModelSpec, own_vocabulary: int, key: str = "model") -> ModelShape:
    """Returns the shape of one of the spec's models.

    key: key of the model in the spec, for error messages.
    """
    match model:
        case GivenFolder():
            path = Path(model.path) / "config.json"
            config = _read_config(path, f"{key}.path")
            return _with_tower(shape_of_config(config, f"{key}.path: {path}"), Path(model.path))
        case ModelConfigFile():
            return shape_of_config(_read_config(Path(model.path), f"{key}.path"), f"{key}.path: {model.path}")
        case ModelSizes() | ModelFromConfig():
            return _inline(model, own_vocabulary)
        case _:
            assert_never(model)


def _inline(model: ModelSizes | ModelFromConfig, own_vocabulary: int) -> ModelShape:
    shape = ModelShape(
        vocabulary=own_vocabulary,
        hidden=model.hidden_size,
        layers=model.layers,
        heads=model.heads,
        key_value_heads=model.key_value_heads,
        head_size=model.hidden_size // model.heads,
        intermediate=model.intermediate_size,
        tied=model.tie_embeddings,
        biased=model.architecture == "qwen2",
        head_norms=model.architecture == "qwen3",
        max_positions=model.max_positions,
        vocabulary_assumed=True,
    )
    if isinstance(model, ModelSizes):
        head_size = model.head_size or shape.head_size
        return replace(shape, vocabulary=model.vocabulary_size, head_size=head_size, vocabulary_assumed=False)
    if (vision := model.vision) is None:
        return shape
    return replace(shape, tower=tower_parameters(vision, model.hidden_size), tower_heads=vision.heads)


def tower_parameters(vision: VisionSpec, text_hidden: int) -> int:
    """Returns the parameters of a SigLIP tower without its pooling head, and of a projector of two layers.

    See arXiv 2303.15343 for the tower and arXiv 2310.03744 for the projector.
    """
    hidden = vision.hidden_size
    wide = vision.intermediate_size
    embedding = CHANNELS * vision.patch_size**2 * hidden + hidden + vision.patches * hidden
    layer = 4 * (hidden * hidden + hidden) + 2 * 2 * hidden + hidden * wide + wide + wide * hidden + hidden
    projector = hidden * text_hidden + text_hidden + text_hidden * text_hidden + text_hidden
    return embedding + vision.layers * layer + 2 * hidden + projector


def shape_of_config(config: Mapping[str, Any], origin: str) -> ModelShape:
    """Returns the shape that a Hugging Face config describes. Raises `ConfigurationError`.

    origin: key and file, for error messages.
    """
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        raise ConfigurationError(f"{origin}: text_config: expected a mapping of keys to values")
    family = text.get("model_type")
    if family not in FAMILIES:
        raise UnknownShapeError(
            f"{origin}: the shape of model_type {family!r} is unknown; known types: {', '.join(FAMILIES)}"
        )
    optional = [name for name in OPTIONAL_SIZES if text.get(name) is not None]
    if wrong := [name for name in (*SIZES, *optional) if type(text.get(name)) is not int or text[name] < 1]:
        raise ConfigurationError(f"{origin}: {', '.join(wrong)}: expected whole numbers of at least 1")
    heads = text["num_attention_heads"]
    key_value_heads = text.get("num_key_value_heads") or heads
    if heads % key_value_heads:
        raise ConfigurationError(
            f"{origin}: num_attention_heads {heads} is not a multiple of num_key_value_heads {key_value_heads}"
        )
    head_size = text.get("head_dim") or text["hidden_size"] // heads
    if not head_size:
        raise ConfigurationError(
            f"{origin}: num_attention_heads {heads} is more than hidden_size {text['hidden_size']}"
        )
    tower = config.get("vision_config")
    tower_heads = tower.get("num_attention_heads") if isinstance(tower, Mapping) else 0
    return ModelShape(
        vocabulary=text["vocab_size"],
        hidden=text["hidden_size"],
        layers=text["num_hidden_layers"],
        heads=heads,
        key_value_heads=key_value_heads,
        head_size=head_size,
        intermediate=text["intermediate_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        biased=family == "qwen2" or bool(text.get("attention_bias", False)),
        head_norms=family == "qwen3",
        max_positions=text.get("max_position_embeddings") or 0,
        tower_heads=tower_heads if type(tower_heads) is int else 0,
    )


def _with_tower(shape: ModelShape, folder: Path) -> ModelShape:
    """Adds the parameters in a folder's weights that are not part of the text model, if the folder has weights."""
    if not any(folder.glob("*.safetensors")):
        return shape
    from yatt_core.models.model_folder import count_parameters

    return replace(shape, tower=max(0, count_parameters(folder) - shape.parameters))


def _read_config(path: Path, key: str) -> dict[str, Any]:
    try:
        return read_object(path, key)
    except ConfigurationError as error:
        raise UnknownShapeError(str(error)) from None
