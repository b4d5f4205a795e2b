"""The policy: a Hugging Face folder or repository, a small model created from a config, or sizes only."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from yatt_core.naming import Names
from yatt_core.section import DefaultKind
from yatt_core.spec.base import SpecModel
from yatt_core.spec.sections.repository import Repository


class GivenFolder(SpecModel):
    """A Hugging Face folder of a causal language model, whoever put it there."""

    path: Annotated[str, Names("path")]
    """The folder with config.json, weights and tokenizer, relative to the spec's folder."""


class ModelFolder(GivenFolder):
    """A local Hugging Face folder of a causal language model."""

    kind: Literal["folder"] = "folder"


class HubModel(Repository, GivenFolder):
    """A model of the Hugging Face Hub, or of a mirror of it (`HF_ENDPOINT`), fetched once before the run is created."""

    kind: Literal["hub"] = "hub"
    path: Annotated[str, Names("path")] = ""
    """The folder into which it was fetched; filled in by YATT."""


class TokenizerSpec(SpecModel):
    """A tokenizer trained on the training prompts: frequent phrases are single tokens, all other text is characters."""

    lowercase: bool = True
    """Convert text to lower case before splitting."""
    phrase_fraction: PositiveFloat = Field(default=0.2, le=1.0)
    """A sequence of words that occurs in at least this fraction of the prompts becomes one token."""


class VisionSpec(SpecModel):
    """A vision tower (SigLIP) with a two-layer projector from patches to tokens of the text model (LLaVA)."""

    image_size: PositiveInt = 32
    """Width and height in pixels to which every image is resized; a multiple of `patch_size`."""
    patch_size: PositiveInt = 8
    """Width and height of a patch in pixels; an image takes (image_size / patch_size)^2 tokens of the prompt."""
    hidden_size: PositiveInt = 64
    """Width of the tower's residual stream; a multiple of `heads`."""
    layers: PositiveInt = 2
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads."""
    intermediate_size: PositiveInt = 128
    """Width of the feed-forward layers."""

    @property
    def patches(self) -> int:
        """Number of patches of an image, each of which is one token of a prompt."""
        return (self.image_size // self.patch_size) ** 2

    @model_validator(mode="after")
    def _sizes_divide(self) -> Self:
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}")
        return self


class ModelFromConfig(SpecModel):
    """A small model created with seeded random weights, for machines that have no model."""

    kind: Literal["from_config"] = "from_config"
    architecture: Literal["qwen2", "qwen3", "llama"] = "qwen3"
    """Architecture of the `transformers` library. `qwen2` is for models with a vision tower alone: transformers 5 reads the
    tokenizer of any other qwen2 folder as Qwen2Tokenizer, whatever the folder says, which gives other tokens."""
    hidden_size: PositiveInt = 128
    """Width of the residual stream; a multiple of `heads`."""
    layers: PositiveInt = 2
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads; a multiple of `key_value_heads`."""
    key_value_heads: PositiveInt = 4
    """Key/value heads, each shared by a group of attention heads."""
    intermediate_size: PositiveInt = 344
    """Width of the feed-forward layers."""
    max_positions: PositiveInt = 2048
    """Maximum sequence length, prompt and response together."""
    tie_embeddings: bool = True
    """Whether input embedding and output projection share one matrix."""
    vision: VisionSpec | None = None
    """A vision tower in front of the text model, for prompts with images; `null`: a text-only model."""
    tokenizer: TokenizerSpec = TokenizerSpec()

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}")
        if self.heads % self.key_value_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of key_value_heads {self.key_value_heads}")
        return self


class ModelConfigFile(SpecModel):
    """The config.json of a Hugging Face model without its weights: for `yatt plan`, not for training."""

    kind: Literal["config_file"] = "config_file"
    path: Annotated[str, Names("path")]
    """The file, relative to the spec's folder."""


class ModelSizes(SpecModel):
    """The sizes of a model without weights: for `yatt plan`, not for training. The defaults are those of Qwen2.5-7B."""

    kind: Literal["sizes"] = "sizes"
    architecture: Literal["qwen2", "qwen3", "llama"] = "qwen2"
    """Architecture of the `transformers` library: qwen2 has biases on queries, keys and values; qwen3 normalises
    queries and keys."""
    vocabulary_size: PositiveInt = 152_064
    """Rows of the embedding matrix."""
    hidden_size: PositiveInt = 3584
    """Width of the residual stream."""
    layers: PositiveInt = 28
    """Transformer blocks."""
    heads: PositiveInt = 28
    """Attention heads; a multiple of `key_value_heads`."""
    key_value_heads: PositiveInt = 4
    """Key/value heads, each shared by a group of attention heads."""
    head_size: PositiveInt | None = None
    """Width of a head; `null`: `hidden_size` / `heads`."""
    intermediate_size: PositiveInt = 18_944
    """Width of the feed-forward layers."""
    max_positions: PositiveInt = 32_768
    """Maximum sequence length, prompt and response together."""
    tie_embeddings: bool = False
    """Whether input embedding and output projection share one matrix."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.head_size is None and self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}; set head_size")
        if self.heads % self.key_value_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of key_value_heads {self.key_value_heads}")
        return self


ModelSpec = Annotated[
    ModelFolder | HubModel | ModelFromConfig | ModelConfigFile | ModelSizes, Field(discriminator="kind")
]
GivenModelSpec = Annotated[ModelFolder | HubModel, Field(discriminator="kind"), DefaultKind("folder")]
"""A model with weights that others have trained."""


MOST_DEMONSTRATIONS = 500
"""Number of demonstrations if the data has enough of them."""


class SftSpec(SpecModel):
    """Supervised fine-tuning on demonstrations (prompt, reference answer) before the first iteration."""

    demonstrations: PositiveInt | None = None
    """Number of training prompts used as demonstrations. `null`: 500, or all of a source that has fewer than its
    share."""
    batch_size: PositiveInt = 64
    """Demonstrations per optimizer step."""
    max_steps: PositiveInt = 400
    """Maximum number of steps."""
    stop_accuracy: PositiveFloat = Field(default=0.3, le=1.0)
    """Stop as soon as the greedy accuracy on `data.probe` tasks reaches this value."""
    probe_every: PositiveInt = 5
    """Steps between measurements of the probe accuracy."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate of AdamW."""
    lr_warmup_steps: NonNegativeInt = 20
    """Steps over which the learning rate rises from zero."""
    min_lr_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """Fraction of the peak learning rate that is left at `max_steps`; the decay is linear from the first step on."""
