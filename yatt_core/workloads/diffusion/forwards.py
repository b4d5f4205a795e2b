"""How images reach the networks of diffusers, and how their predictions come back: one class for each class of networks.

Consumes latents as images, [B, C, H, W], times as SD3 and UNets are told them, from 0 to 1000, and conditions. Produces
predictions of the latents' shape. Flux (Black Forest Labs, 2024) and Qwen-Image (arXiv 2508.02324) take images as rows of
tokens. A token is a square of `side` x `side` places with all their channels, in the order of diffusers' pipelines: channel,
row, column. The side follows from the network: it has C side^2 input channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from yatt_core.errors import ConfigurationError
from yatt_core.workloads.diffusion.conditions import Conditions
from yatt_core.workloads.diffusion.networks import FLUX, KEY, QWEN_IMAGE, TRANSFORMER, UNET, kind_of

LARGEST_TIME = 1000.0
"""Flux and Qwen-Image are told times from 0 to 1, which they multiply themselves."""


class NetworkForward(Protocol):
    """A pass through networks of one class."""

    def __call__(
        self, network: nn.Module, latents: torch.Tensor, times: torch.Tensor, conditions: Conditions
    ) -> torch.Tensor:
        """Returns predictions, [B, C, H, W].

        times: [B], float32, from 0 to 1000.

        Raises `ConfigurationError` for images or conditions that do not suit the network.
        """
        ...


class Sd3Forward:
    """SD3 (arXiv 2403.03206): takes images, the vectors of words and the pooled vector; knows no mask."""

    def __call__(
        self, network: nn.Module, latents: torch.Tensor, times: torch.Tensor, conditions: Conditions
    ) -> torch.Tensor:
        """See `NetworkForward`."""
        found = network(
            hidden_states=latents,
            encoder_hidden_states=conditions.words,
            pooled_projections=conditions.pooled,
            timestep=times,
            return_dict=False,
        )
        prediction: torch.Tensor = found[0]
        return prediction


class UnetForward:
    """A UNet with cross-attention to the vectors of words; knows no mask and no pooled vector."""

    def __call__(
        self, network: nn.Module, latents: torch.Tensor, times: torch.Tensor, conditions: Conditions
    ) -> torch.Tensor:
        """See `NetworkForward`."""
        found = network(latents, times, encoder_hidden_states=conditions.words, return_dict=False)
        prediction: torch.Tensor = found[0]
        return prediction


class FluxForward:
    """Flux: takes tokens, the vectors of words and the pooled vector; knows no mask.

    Every token has a position of three numbers: 0, row, column. Words have 0, 0, 0. Positions are float32 whatever the
    latents' dtype, since bfloat16 knows no odd numbers above 256. A network with an embedding for guidance is told that of the
    conditions. Times and guidance are rounded to the latents' dtype by the network itself.
    """

    def __call__(
        self, network: nn.Module, latents: torch.Tensor, times: torch.Tensor, conditions: Conditions
    ) -> torch.Tensor:
        """See `NetworkForward`."""
        side = packing_side(network, latents)
        guidance = conditions.guidance
        if _settings(network)["guidance_embeds"] != (guidance is not None):
            expected = "no guidance" if guidance is not None else "a guidance"
            raise ConfigurationError(f"{KEY}: {kind_of(network)}: expected conditions with {expected}")
        found = network(
            hidden_states=packed(latents, side),
            encoder_hidden_states=conditions.words,
            pooled_projections=conditions.pooled,
            timestep=times / LARGEST_TIME,
            img_ids=positions(latents.shape[-2] // side, latents.shape[-1] // side, latents.device),
            txt_ids=torch.zeros(conditions.words.shape[1], 3, device=latents.device),
            guidance=guidance,
            return_dict=False,
        )
        return unpacked(found[0], side, latents.shape)


class QwenImageForward:
    """Qwen-Image: takes tokens and the vectors of words with a mask; knows no pooled vector.

    The mask is always given: without one, as when every prompt of a batch is of full length, attention takes another path
    through the processor's libraries, and an image's bits would depend on its neighbours' prompts. Times are rounded to the
    latents' dtype by the network itself.
    """

    def __call__(
        self, network: nn.Module, latents: torch.Tensor, times: torch.Tensor, conditions: Conditions
    ) -> torch.Tensor:
        """See `NetworkForward`."""
        side = packing_side(network, latents)
        shape = (1, latents.shape[-2] // side, latents.shape[-1] // side)
        found = network(
            hidden_states=packed(latents, side),
            encoder_hidden_states=conditions.words,
            encoder_hidden_states_mask=conditions.mask,
            timestep=times / LARGEST_TIME,
            img_shapes=[[shape]] * len(latents),
            return_dict=False,
        )
        return unpacked(found[0], side, latents.shape)


FORWARDS: Mapping[str, NetworkForward] = {
    TRANSFORMER: Sd3Forward(),
    FLUX: FluxForward(),
    QWEN_IMAGE: QwenImageForward(),
    UNET: UnetForward(),
}
"""By the class of the network."""


def packing_side(network: nn.Module, latents: torch.Tensor) -> int:
    """Returns the side of the squares that are a network's tokens.

    Raises `ConfigurationError` for a network that has no token for a square of these latents.
    """
    settings = _settings(network)
    channels = latents.shape[1]
    side = math.isqrt(settings["in_channels"] // channels)
    if side < 1 or channels * side * side != settings["in_channels"]:
        raise ConfigurationError(
            f"{KEY}: {kind_of(network)}: in_channels: expected {channels} x a square number, for latents of {channels} channels "
            f"(given: {settings['in_channels']})"
        )
    if latents.shape[-2] % side or latents.shape[-1] % side:
        raise ConfigurationError(
            f"{KEY}: {kind_of(network)}: its tokens are squares of {side} x {side}, which do not divide latents of "
            f"{latents.shape[-2]} x {latents.shape[-1]}"
        )
    predicted = settings["patch_size"] ** 2 * (settings["out_channels"] or settings["in_channels"])
    if predicted != settings["in_channels"]:
        raise ConfigurationError(
            f"{KEY}: {kind_of(network)}: predicts {predicted} numbers for a token of {settings['in_channels']}; expected as many"
        )
    return side


def packed(latents: torch.Tensor, side: int) -> torch.Tensor:
    """Returns images, [B, C, H, W], as tokens, [B, H W / side^2, C side^2], row by row."""
    count, channels, height, width = latents.shape
    squares = latents.reshape(count, channels, height // side, side, width // side, side)
    return squares.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, channels * side * side)


def unpacked(tokens: torch.Tensor, side: int, shape: torch.Size) -> torch.Tensor:
    """Returns tokens as images of a shape, [B, C, H, W]: what `packed` was given."""
    count, channels, height, width = shape
    squares = tokens.reshape(count, height // side, width // side, channels, side, side)
    return squares.permute(0, 3, 1, 4, 2, 5).reshape(shape)


def positions(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Returns the positions of tokens, [rows x columns, 3], float32: 0, row, column."""
    found = torch.zeros(rows, columns, 3, device=device)
    found[..., 1] = torch.arange(rows, device=device)[:, None]
    found[..., 2] = torch.arange(columns, device=device)
    return found.view(-1, 3)


def _settings(network: nn.Module) -> Any:
    """Returns the arguments with which a network was made."""
    return network.config
