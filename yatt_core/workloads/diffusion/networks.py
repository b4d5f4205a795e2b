"""Networks of diffusers: made from a seed, saved to and loaded from a folder in diffusers' layout.

A folder has config.json, which names the class, and safetensors weights, in one file or in several with an index. diffusers is
imported once a network is needed, and takes some seconds. What its own loading leaves to chance is checked here: every tensor
must be there with its shape, none stays on the meta device, and weights are copied from the files, since memory-mapped ones
lie where they happen to lie, which changes the last bits of a product.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from yatt_core.errors import ConfigurationError
from yatt_core.installed import DIFFUSERS, has_distribution
from yatt_core.keys import stable_seed
from yatt_core.models.offline import keep_libraries_offline
from yatt_core.regular_files import read_object

CONFIG = "config.json"
CLASS = "_class_name"
WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = "diffusion_pytorch_model.safetensors.index.json"
TRANSFORMER = "SD3Transformer2DModel"
FLUX = "FluxTransformer2DModel"
QWEN_IMAGE = "QwenImageTransformer2DModel"
UNET = "UNet2DConditionModel"
KINDS = (TRANSFORMER, FLUX, QWEN_IMAGE, UNET)
"""The classes of networks that are known; no other is loaded, and no code of a folder is executed."""
WITHOUT = {
    QWEN_IMAGE: {
        "guidance_embeds": "the class takes a guidance but has nowhere to put it",
        "zero_cond_t": "it is for networks that edit images",
        "use_additional_t_cond": "it is for networks that draw images in layers",
        "use_layer3d_rope": "it is for networks that draw images in layers",
    },
}
"""Settings that must be off, by class, each with the reason."""
DROPPED = {QWEN_IMAGE: ("pooled_projection_dim",)}
"""Settings that published folders name, though the class has no use for them and no longer knows them."""
KEY = "model.path"


def make_network(kind: str, settings: Mapping[str, Any], seed: int, place: str = KEY) -> nn.Module:
    """Returns a network with seeded float32 weights, in evaluation mode; the same arguments always give the same bits.

    kind: one of `KINDS`.
    settings: the arguments of diffusers' class.
    place: where they stand, for messages.

    Raises `ConfigurationError` for a class or a setting that is not known, for a setting of a network that does not draw images
    of prompts alone, and without diffusers.
    """
    network_class = _network_class(kind, settings, place)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stable_seed("weights", seed))
        return _instance(network_class, settings, place)


def outline_network(kind: str, settings: Mapping[str, Any], place: str = KEY) -> nn.Module:
    """Returns the network of `make_network` for its sizes alone, to be called in torch's FakeTensorMode. Raises as it does."""
    return _instance(_network_class(kind, settings, place), settings, place)


def retype(network: nn.Module, dtype: torch.dtype) -> None:
    """Gives an outlined network's floating-point tensors a type, in place, and takes the numbers of those that have any.

    `nn.Module.to` cannot do so in FakeTensorMode.
    """
    for module in network.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            blank = torch.empty(weight.shape, dtype=dtype)
            setattr(module, name, nn.Parameter(blank, requires_grad=weight.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(dtype) if buffer.is_floating_point() else buffer)


def _network_class(kind: str, settings: Mapping[str, Any], place: str) -> type[nn.Module]:
    """Returns diffusers' class, which knows these settings. Raises as `make_network` does."""
    if kind not in KINDS:
        raise ConfigurationError(f"{place}: {kind!r} is not a known network; known: {', '.join(KINDS)}")
    if not has_distribution(DIFFUSERS):
        raise ConfigurationError("diffusion models need diffusers; install it with: pip install 'yatt[diffusion]'")
    keep_libraries_offline()
    import diffusers

    network_class: type[nn.Module] = getattr(diffusers, kind)
    known = inspect.signature(network_class.__init__).parameters
    if unknown := sorted(set(settings) - set(known)):
        raise ConfigurationError(f"{place}: {kind} has no setting {unknown[0]!r}")
    for name, reason in WITHOUT.get(kind, {}).items():
        if settings.get(name):
            raise ConfigurationError(f"{place}: {kind}: {name}: expected false; {reason} (given: {settings[name]!r})")
    return network_class


def _instance(network_class: type[nn.Module], settings: Mapping[str, Any], place: str) -> nn.Module:
    try:
        return network_class(**settings).eval()
    except (TypeError, ValueError) as error:
        kind = network_class.__name__
        raise ConfigurationError(f"{place}: {kind} cannot be made with these settings: {error}") from error


def kind_of(network: nn.Module) -> str:
    """Returns which of `KINDS` a network is, also one whose class was derived from it, as FSDP2 does.

    Raises `ConfigurationError` for another class.
    """
    for each in type(network).__mro__:
        if each.__name__ in KINDS:
            return each.__name__
    raise ConfigurationError(f"{type(network).__name__} is not a known network; known: {', '.join(KINDS)}")


def save_network(network: nn.Module, folder: Path) -> None:
    """Writes config.json and one file of weights, which diffusers loads too, into a folder without weights.

    Raises `ConfigurationError` if there are weights: a second file beside an index would never be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if left := sorted(path.name for path in folder.glob("diffusion_pytorch_model*")):
        raise ConfigurationError(f"{folder}: has weights already ({left[0]}); save to another folder")
    stated: Any = network.config
    settings = {name: value for name, value in dict(stated).items() if not name.startswith("_")}
    text = json.dumps({CLASS: kind_of(network), **settings}, indent=2, sort_keys=True)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().contiguous() for name, tensor in network.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def load_network(folder: Path, dtype: torch.dtype) -> nn.Module:
    """Returns the network in a folder, in evaluation mode, on the CPU.

    dtype: the one that the weights get, whatever theirs in the files.

    Raises `ConfigurationError` for a missing, unknown, unreadable or surplus part.
    """
    stated = read_object(folder / CONFIG, KEY)
    kind = stated.get(CLASS)
    if not isinstance(kind, str):
        raise ConfigurationError(f"{KEY}: {folder / CONFIG} has no {CLASS}; expected a network of diffusers")
    dropped = DROPPED.get(kind, ())
    settings = {name: value for name, value in stated.items() if not name.startswith("_") and name not in dropped}
    # diffusers' own `to` warns of layers that it would keep in float32, also where there are none, as in all `KINDS`.
    network = nn.Module.to(make_network(kind, settings, seed=0), dtype)
    wanted = network.state_dict()
    missing = set(wanted)
    for path, name, tensor in _stored(folder):
        if name not in wanted:
            raise ConfigurationError(f"{KEY}: {path}: {kind} has no tensor {name}")
        if tensor.shape != wanted[name].shape:
            raise ConfigurationError(
                f"{KEY}: {path}: {name} has the shape {list(tensor.shape)}; expected {list(wanted[name].shape)}"
            )
        wanted[name].copy_(tensor)
        missing.discard(name)
    if missing:
        raise ConfigurationError(f"{KEY}: {folder}: the weights lack {min(missing)} ({len(missing)} tensors in all)")
    return network


def _stored(folder: Path) -> Iterator[tuple[Path, str, torch.Tensor]]:
    """Yields each tensor of a folder's files with its file and name."""
    for path in _files(folder):
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(f"{KEY}: {path}: cannot be read: {error}") from None
        for name, tensor in tensors.items():
            yield path, name, tensor


def _files(folder: Path) -> list[Path]:
    whole = folder / WEIGHTS
    index = folder / INDEX
    if whole.exists() and index.exists():
        raise ConfigurationError(
            f"{KEY}: {folder} has {WEIGHTS} and the index of a sharded model; remove the stale one"
        )
    if whole.exists():
        return [whole]
    if not index.exists():
        raise ConfigurationError(
            f"{KEY}: {folder} has neither {WEIGHTS} nor {INDEX}; weights are read from safetensors only"
        )
    names = read_object(index, KEY).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) and "/" not in name for name in names.values()):
        raise ConfigurationError(f"{KEY}: {index} has no `weight_map` from tensors to files of the folder")
    return [folder / name for name in sorted(set(names.values()))]
