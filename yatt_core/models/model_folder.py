"""The policy's Hugging Face folder: checks a given one, or creates a small one from a config with seeded weights.

Consumes the spec's model section. Produces a folder with config.json, safetensors and tokenizer, and its size.
Weights are read from safetensors only, because pickles can execute code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from yatt_core.digests import file_sha256
from yatt_core.errors import ConfigurationError
from yatt_core.keys import stable_seed
from yatt_core.models.config_file import CONFIG, read_config
from yatt_core.models.known_tokens import within_rows
from yatt_core.models.loading import quiet_transformers
from yatt_core.models.tokenizer import END_ID, IMAGE_ID, PAD_ID, load_tokenizer
from yatt_core.regular_files import read_object
from yatt_core.spec.sections.model import ModelFromConfig, VisionSpec

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
USUAL_LABELS = 2
"""Default number of labels in transformers, for a classifier whose config.json names none."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
SMALL_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model"})
"""Suffixes of a model's files other than its weights."""
TEMPLATES = "additional_chat_templates"
"""Folder of a model's named chat templates other than the default one."""
MARK = f"{TEMPLATES}/"
"""Key of a fingerprint that says how many of them there are; it names no file."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a run records about its initial model.

    model_path: the model's folder, absolute or relative to the inputs' folder; empty if there is no model.
    model_files: fingerprints of the files of a given folder.
    vocabulary: number of tokens of the tokenizer.
    """

    model_path: str
    model_files: Mapping[str, str]
    vocabulary: int
    parameters: int


def make_model(model: ModelFromConfig, vocabulary: int, seed: int, folder: Path) -> None:
    """Writes config and weights (float32) into the folder; the same arguments always give the same bytes.

    vocabulary: rows of the embedding.
    """
    import torch

    transformers = quiet_transformers()
    config = _text_config(model, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stable_seed("weights", seed))
        if model.vision is None:
            network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        else:
            network = transformers.LlavaForConditionalGeneration(_vision_language_config(model.vision, config))
            _image_processor(model.vision).save_pretrained(folder)
    network.save_pretrained(folder)
    _name_rope_theta(folder / CONFIG)


def _name_rope_theta(path: Path) -> None:
    """Writes the base of the rotary positions where transformers 4 reads it too, which would take its own default in silence."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for part in (config, config.get("text_config", {})):
        if "rope_parameters" in part:
            part["rope_theta"] = part["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _text_config(model: ModelFromConfig, vocabulary: int) -> Any:
    """Returns the transformers config of the text model."""
    from transformers import AutoConfig

    return AutoConfig.for_model(
        model.architecture,
        vocab_size=vocabulary,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        head_dim=model.hidden_size // model.heads,
        max_position_embeddings=model.max_positions,
        tie_word_embeddings=model.tie_embeddings,
        pad_token_id=PAD_ID,
        eos_token_id=END_ID,
        bos_token_id=None,
    )


def _vision_language_config(vision: VisionSpec, text: Any) -> Any:
    """Returns a LLaVA config (arXiv 2304.08485).

    All patches of the tower's last block pass through a projector and join the tokens of the text model.
    """
    from transformers import LlavaConfig, SiglipVisionConfig

    tower = SiglipVisionConfig(
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_hidden_layers=vision.layers,
        num_attention_heads=vision.heads,
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        vision_use_head=False,
    )
    return LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=IMAGE_ID,
        image_seq_length=vision.patches,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=text.tie_word_embeddings,
        pad_token_id=PAD_ID,
        eos_token_id=END_ID,
    )


def _image_processor(vision: VisionSpec) -> Any:
    """Returns a processor that resizes images to the tower's size and scales pixels to -1 .. 1, without torch."""
    from transformers import SiglipImageProcessorPil

    return SiglipImageProcessorPil(
        size={"height": vision.image_size, "width": vision.image_size}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )


def describe_model(folder: Path) -> ModelFacts:
    """Returns the facts of a given Hugging Face folder. Raises `ConfigurationError` if it cannot be used."""
    check_model_folder(folder)
    vocabulary = len(within_rows(load_tokenizer(folder), read_config(folder), folder))
    return ModelFacts(str(folder), fingerprint(folder), vocabulary, count_parameters(folder))


def check_model_unchanged(folder: Path, recorded: Mapping[str, str]) -> None:
    """Raises `ConfigurationError`, which names the differences, if a folder no longer matches `describe_model`."""
    check_model_folder(folder)
    found = fingerprint(folder)
    if MARK not in recorded:  # a run of a build that did not record them
        found = {name: value for name, value in found.items() if not name.startswith(TEMPLATES)}
    if changed := sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name)):
        raise ConfigurationError(f"model.path: {folder} has changed since the run began: {', '.join(changed)}")


def fingerprint(folder: Path) -> dict[str, str]:
    """Returns what identifies a given model: the digests of its small files and the sizes of its weights."""
    weights = (path for path in folder.iterdir() if path.is_file() and path.suffix == ".safetensors")
    templates = sum(path.parent.name == TEMPLATES for path in small_files(folder))
    return {
        MARK: f"{templates} files",
        **{path.name: f"{path.stat().st_size} bytes" for path in sorted(weights)},
        **{path.relative_to(folder).as_posix(): file_sha256(path) for path in small_files(folder)},
    }


def small_files(folder: Path) -> list[Path]:
    """Returns a model's files other than its weights (config, tokenizer, chat templates), sorted by name."""
    places = [folder, folder / TEMPLATES] if (folder / TEMPLATES).is_dir() else [folder]
    return sorted(
        path for place in places for path in place.iterdir() if path.is_file() and path.suffix in SMALL_SUFFIXES
    )


def check_model_folder(folder: Path) -> None:
    """Raises `ConfigurationError` if the folder lacks something a Hugging Face causal language model needs; the error
    says what.
    """
    if not folder.is_dir():
        raise ConfigurationError(
            f"model.path: {folder} is not a folder; expected a Hugging Face model's. A model of the Hub is named without `path`: "
            "`model: ORGANISATION/NAME`, such as `model: Qwen/Qwen3-0.6B`"
        )
    if "model_type" not in read_config(folder):
        raise ConfigurationError(f"model.path: {folder / CONFIG} has no model_type; expected a Hugging Face model")
    missing = [path.name for path in weight_files(folder) if not path.is_file()]
    if missing:
        raise ConfigurationError(f"model.path: {folder} lacks weights named in its index: {', '.join(missing)}")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ConfigurationError(f"model.path: {folder} has no tokenizer; expected one of {', '.join(TOKENIZER_FILES)}")


def positions_of(config: Mapping[str, Any]) -> int | None:
    """Returns a model's maximum number of positions according to its config.json; None if it has no limit.

    For a vision-language model, this is the limit of its text model. Raises `ConfigurationError` for an invalid
    limit.
    """
    text = config.get("text_config") or config
    positions = text.get("max_position_embeddings") if isinstance(text, Mapping) else text
    if positions is not None and (type(positions) is not int or positions < 1):
        raise ConfigurationError(
            f"model.path: {CONFIG}: max_position_embeddings: expected an integer above 0 (given: {positions!r:.80})"
        )
    return positions


def outputs_of(config: Mapping[str, Any]) -> int | None:
    """Returns the number of outputs of a classifier according to its config.json; None for invalid labels."""
    labels = config.get("id2label")
    if labels is None:
        count = config.get("num_labels", USUAL_LABELS)
        return count if type(count) is int else None
    return len(labels) if isinstance(labels, Mapping) else None


def weight_files(folder: Path) -> Sequence[Path]:
    """Returns the model's safetensors files, sorted by name. Raises `ConfigurationError` if there are none."""
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        named = read_object(index, "model.path").get("weight_map")
        if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
            raise ConfigurationError(f"model.path: {index}: weight_map: expected a mapping of tensors to files")
        return [folder / name for name in sorted(set(named.values()))]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if files := sorted(folder.glob("*.safetensors")):
        return files
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLE_SUFFIXES)
    hint = f"; {', '.join(pickles)} may be pickles, which can run code: convert to safetensors" if pickles else ""
    raise ConfigurationError(f"model.path: {folder} has no weights (*.safetensors){hint}")


def matrix_names(folder: Path) -> set[str]:
    """Returns the names of the matrices in the layers, such as `q_proj` for `model.layers.0.self_attn.q_proj.weight`.

    Raises as `count_parameters` does.
    """
    parts = [name.split(".") for name, shape in tensor_shapes(folder) if name.endswith(".weight") and len(shape) == 2]
    return {part[-2] for part in parts if any(word.isdecimal() for word in part)}


def count_parameters(folder: Path) -> int:
    """Returns the number of elements of all stored tensors; tied tensors count once.

    Raises `ConfigurationError` for a damaged file.
    """
    return sum(math.prod(shape) for _, shape in tensor_shapes(folder))


def tensor_shapes(folder: Path) -> Iterator[tuple[str, Sequence[int]]]:
    """Yields the name and shape of each stored tensor. Raises as `count_parameters` does."""
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping, cannot be iterated
                    yield name, tensors.get_slice(name).get_shape()
        except (SafetensorError, OSError) as error:
            raise ConfigurationError(f"model.path: {path} is not a readable safetensors file: {error}") from error
