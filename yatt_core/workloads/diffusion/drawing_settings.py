"""`workload.settings` of the workload that draws: what may be set, and what goes with which method and network.

Consumes plain values. Produces checked settings, and from them the arguments of diffusers' classes and the process that a
network was made for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from yatt_core.section import SpecModel
from yatt_core.workloads.diffusion.adapters import AdapterSettings
from yatt_core.workloads.diffusion.denoising import DenoisingProcess
from yatt_core.workloads.diffusion.flow import FlowProcess
from yatt_core.workloads.diffusion.networks import FLUX, QWEN_IMAGE, TRANSFORMER, UNET
from yatt_core.workloads.diffusion.objectives import DpoObjective, NftObjective, Objective, TrajectoryObjective
from yatt_core.workloads.diffusion.pretraining import PretrainingSettings
from yatt_core.workloads.diffusion.processes import SamplingProcess
from yatt_core.workloads.diffusion.scorers import RewardSettings, ShapeRule
from yatt_core.workloads.diffusion.shapes import SHAPE, SIDE
from yatt_core.workloads.diffusion.updates import GrpoSettings
from yatt_core.workloads.diffusion.window import StepWindow

METHODS_OF: Mapping[str, tuple[str, ...]] = {
    "window": ("grpo",),
    "window_interval": ("grpo",),
    "noise_level": ("grpo",),
    "eta": ("grpo", "ddpo"),
    "clip": ("grpo", "ddpo"),
    "kl": ("grpo",),
    "strength": ("nft", "dpo"),
    "noisings": ("nft", "dpo"),
    "reward_clip": ("nft",),
    "weighting": ("nft",),
    "old_rise": ("nft",),
    "old_most": ("nft",),
}
"""Settings that some methods alone know, and these methods."""
INPUTS = frozenset(
    {
        "reward",
        "network",
        "guidance",
        "heads",
        "head_width",
        "layers",
        "patch",
        "word_width",
        "pretraining",
        "wrong",
        "adapters",
    }
)
"""Settings that the inputs depend on: those of the network, of its pre-training and of the reward."""
STATE = frozenset({"method", "old_rise", "old_most"})
"""Settings that decide what is in the state beside the network."""
FORM = frozenset({"network", "guidance", "heads", "head_width", "layers", "patch", "word_width"})
"""Settings that decide which tensors a network has, and of which shapes."""
WHY = {
    "nft": "learns from noised images, and samples without stochastic steps",
    "dpo": "compares pairs of noised images with the pre-trained network, and samples without stochastic steps",
    "ddpo": "learns from every stochastic step by itself, without a reference",
    "grpo": "learns from the stochastic steps of trajectories",
}
"""What a method does, for a setting that it does not know."""
NETWORKS = {"sd3": TRANSFORMER, "flux": FLUX, "qwen_image": QWEN_IMAGE, "unet": UNET}
"""Classes of diffusers by the names of the settings."""
GROUPS = 8
"""Most groups of channels that a UNet normalises apart."""
LEAST_CHANNELS = 4
"""Fewest channels of a UNet: half of them are sines of the level, half cosines."""
NFT_STRENGTH = 1.0
DPO_STRENGTH = 20.0
"""Strengths by default: DiffusionNFT's b; for Diffusion-DPO what suits the errors of shapes, far below that for large models."""


class DrawingSettings(SpecModel):
    """`workload.settings` of the workload."""

    reward: RewardSettings = ShapeRule()
    """What rewards an image: the rule, or a model."""
    method: Literal["grpo", "ddpo", "nft", "dpo"] = "grpo"
    """What is learnt from images: Flow-GRPO (arXiv 2505.05470), DDPO (2305.13301), DiffusionNFT (2509.16117), or Diffusion-DPO
    (2311.12908) over pairs that the policy samples."""
    network: Literal["sd3", "flux", "qwen_image", "unet"] = "sd3"
    """The class of the network: a transformer that predicts the velocity of a flow, or a UNet that predicts noise."""
    guidance: PositiveFloat | None = None
    """Guidance that a Flux network with an embedding for it is told, in pre-training too; `null`: it has none."""
    heads: PositiveInt = 4
    """Attention heads of the network."""
    head_width: PositiveInt = 24
    """Width of a head; even and at least 6 for rotary positions, those of Flux and Qwen-Image. A UNet has as many channels as all
    heads together where it attends, and half as many with each doubling of the image's side."""
    layers: PositiveInt = 3
    """Blocks of the transformer; of Flux, of each of its two kinds; of a UNet, at each side of the image."""
    patch: PositiveInt = 4
    """Side of the patches that are the network's tokens, in pixels; a UNet halves the image until they are its pixels."""
    word_width: PositiveInt = 32
    """Numbers of a word's vector."""
    pretraining: PositiveInt = 700
    """Steps of pre-training when the inputs are built; more than 10."""
    wrong: float = Field(default=0.25, ge=0, le=1)
    """Share of captions that are drawn at random in pre-training."""
    group: PositiveInt = 16
    """Images of a prompt in an iteration."""
    steps: PositiveInt = 6
    """Steps of a trajectory in training."""
    window: PositiveInt = 2
    """Stochastic steps among them (MixGRPO, arXiv 2507.21802)."""
    window_interval: int = Field(default=0, ge=0)
    """Iterations after which the window moves by a step; 0 keeps it at the first steps."""
    noise_level: PositiveFloat = 0.7
    """Flow-GRPO's noise level (arXiv 2505.05470)."""
    eta: float = Field(default=1.0, gt=0, le=1)
    """Noise of a UNet's stochastic steps, as a share of DDPM's (arXiv 2010.02502)."""
    rate: PositiveFloat = 2e-4
    """Learning rate of AdamW."""
    clip: PositiveFloat = 1e-3
    """Ratios of steps are clipped at 1 - `clip` and 1 + `clip`."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence to the pre-trained network."""
    strength: PositiveFloat | None = None
    """DiffusionNFT's b, 1 by default; of `dpo`, beta T omega(lambda) of the paper, 20 by default."""
    noisings: PositiveInt = 1
    """Times at which `nft` and `dpo` noise each image in an update."""
    reward_clip: PositiveFloat = 5.0
    """Of `nft`: an image whose reward is so many deviations of its group above the mean is certainly good, below certainly not.
    Where rewards are cut, good and bad images no longer balance, and the policy moves away from all that it draws."""
    weighting: Literal["adaptive", "none"] = "adaptive"
    """Whether `nft` divides the squared error of a predicted image by its mean absolute error, or takes that of the velocity."""
    old_rise: PositiveFloat = 0.001
    """Share of `nft`'s sampling weights that stays after the first update, and by which it rises with each."""
    old_most: float = Field(default=0.5, ge=0, lt=1)
    """The most of `nft`'s sampling weights that stays; 0: images are sampled from the trained weights."""
    max_grad_norm: PositiveFloat = 1.0
    """The norm to which gradients are limited."""
    adapters: AdapterSettings | None = None
    """Low-rank adapters, which are then trained in place of the network's own weights."""
    keep: Literal["seeds", "latents"] = "seeds"
    """What is sealed of a trajectory: seeds, from which it is sampled again, or all latents."""
    rows: PositiveInt = 64
    """Images of the batches in which a network computes; it divides `group`, or is a multiple of it."""
    evaluation_steps: PositiveInt = 16
    """Steps of the deterministic trajectories of an evaluation."""
    held_out: PositiveInt = 32
    """Images of each prompt in an evaluation."""

    @model_validator(mode="after")
    def _check(self) -> DrawingSettings:
        self._check_method()
        if self.network == "unet":
            self._check_unet()
        if self.method == "grpo" and self.window > self.steps:
            raise ValueError(f"window: {self.window} stochastic steps do not fit into steps: {self.steps}")
        if self.network in ("flux", "qwen_image") and (self.head_width % 2 or self.head_width < 6):
            raise ValueError(
                f"head_width: expected an even number of at least 6 with {self.network} (given: {self.head_width})"
            )
        if self.network == "sd3" and self.heads * self.head_width % 4:
            raise ValueError(
                f"head_width: expected a multiple of 4 from heads x head_width with sd3, whose positions have four equal parts "
                f"(given: {self.heads} x {self.head_width})"
            )
        if self.guidance is not None and self.network != "flux":
            raise ValueError(f"guidance: {self.network} has no embedding for it; expected null, or network: flux")
        if SIDE % self.patch:
            raise ValueError(f"patch: {self.patch} does not divide {SIDE}, the side of an image")
        if self.rows % self.group and self.group % self.rows:
            raise ValueError(f"rows: {self.rows} neither divides group: {self.group}, nor is it a multiple of it")
        PretrainingSettings(self.pretraining)
        return self

    def _check_method(self) -> None:
        """Refuses what the method, or the process that its network was made for, does not know."""
        for name in sorted(self.model_fields_set & METHODS_OF.keys()):
            if self.method not in METHODS_OF[name]:
                known = " or ".join(METHODS_OF[name])
                raise ValueError(
                    f"{name}: method: {self.method} {WHY[self.method]}; expected no {name}, or method: {known}"
                )
        if self.method == "ddpo" and self.network != "unet":
            raise ValueError(
                f"method: ddpo learns from the noise of denoising, but {self.network} predicts the velocity of a flow; expected "
                "network: unet, or method: grpo"
            )
        if self.method == "nft" and self.network == "unet":
            raise ValueError(
                "method: nft compares velocities of a flow, but unet predicts noise; expected network: sd3, flux or qwen_image"
            )
        if self.method == "dpo" and self.group < 2:
            raise ValueError("group: dpo compares two images of a prompt; expected at least 2 (given: 1)")
        if "old_rise" in self.model_fields_set and not self.old_most:
            raise ValueError(
                "old_rise: images are sampled from the trained weights with old_most: 0; expected no old_rise"
            )
        if "eta" in self.model_fields_set and self.network != "unet":
            raise ValueError(
                f"eta: {self.network} follows a flow, which has noise_level; expected no eta, or network: unet"
            )

    def _check_unet(self) -> None:
        if "noise_level" in self.model_fields_set:
            raise ValueError("noise_level: unet follows no flow, but denoises with eta; expected no noise_level")
        if self.patch & (self.patch - 1):
            raise ValueError(f"patch: unet halves the side of an image; expected a power of 2 (given: {self.patch})")
        if self.heads * self.head_width % self.patch:
            raise ValueError(
                f"head_width: expected a multiple of patch: {self.patch} from heads x head_width with unet, whose channels are "
                f"halved as often as the side of an image (given: {self.heads} x {self.head_width})"
            )
        channels = self.heads * self.head_width // self.patch
        if channels < LEAST_CHANNELS or channels % 2:
            raise ValueError(
                f"head_width: expected an even number of at least {LEAST_CHANNELS} from heads x head_width / patch with unet, "
                f"whose channels at the image's side also tell it the level (given: {self.heads} x {self.head_width} / "
                f"{self.patch})"
            )
        if self.method == "grpo" and self.window >= self.steps:
            raise ValueError(
                f"window: {self.window} stochastic steps do not fit into steps: {self.steps}; the last one of unet has no noise"
            )
        if self.method == "ddpo" and self.steps < 2:
            raise ValueError("steps: the last step of unet has no noise to learn from; expected at least 2 (given: 1)")

    @property
    def batch(self) -> int:
        """Images of which one rank computes the gradient: whole batches of the network, and whole groups."""
        return max(self.rows, self.group)

    @property
    def process(self) -> SamplingProcess:
        """The way from noise to an image that the network was made for."""
        return DenoisingProcess(self.eta) if self.network == "unet" else FlowProcess(self.noise_level)

    @property
    def steps_with_noise(self) -> int:
        """Steps of a trajectory that may be stochastic."""
        return self.steps - 1 if self.network == "unet" else self.steps

    @property
    def stochastic(self) -> int:
        """Steps of a trajectory that are stochastic, and learnt from."""
        sizes = {"grpo": self.window, "ddpo": self.steps_with_noise}
        return sizes.get(self.method, 0)

    @property
    def keeps_old(self) -> bool:
        """Whether images are sampled from weights of their own, which follow the trained ones."""
        return self.method == "nft" and self.old_most > 0

    def learnt(self, prompts: int) -> int:
        """Returns the number of passes with gradients through a single image in an iteration. prompts: that have a group each."""
        by_method = {
            "nft": prompts * self.group * self.noisings,
            "dpo": 2 * prompts * self.noisings,
        }
        return by_method.get(self.method, prompts * self.group * self.stochastic)

    @property
    def compares(self) -> bool:
        """Whether an update compares with the pre-trained network."""
        return self.method == "dpo" or bool(self.kl)

    def window_at(self, iteration: int) -> range:
        """Returns the stochastic steps of an iteration, counted from 1."""
        return StepWindow(self.stochastic, self.window_interval).at(iteration, self.steps_with_noise)

    def old_share(self, iteration: int) -> float:
        """Returns the share of the sampling weights that stays after an iteration, counted from 1 (arXiv 2509.16117)."""
        return min(self.old_rise * iteration, self.old_most)


def objective_of(settings: DrawingSettings) -> Objective:
    """Returns what a run learns by."""
    if settings.method == "nft":
        return NftObjective(
            strength=settings.strength or NFT_STRENGTH,
            noisings=settings.noisings,
            reward_clip=settings.reward_clip,
            adaptive=settings.weighting == "adaptive",
            rows=settings.rows,
        )
    if settings.method == "dpo":
        return DpoObjective(settings.strength or DPO_STRENGTH, settings.noisings, settings.rows)
    return TrajectoryObjective(GrpoSettings(settings.clip, settings.kl, settings.rows))


def network_settings(settings: DrawingSettings) -> dict[str, Any]:
    """Returns the arguments of diffusers' class of the network."""
    if settings.network == "unet":
        return _unet_settings(settings)
    shared = {
        "num_layers": settings.layers,
        "attention_head_dim": settings.head_width,
        "num_attention_heads": settings.heads,
        "joint_attention_dim": settings.word_width,
    }
    if settings.network == "sd3":
        return shared | {
            "sample_size": SIDE,
            "patch_size": settings.patch,
            "in_channels": SHAPE[0],
            "out_channels": SHAPE[0],
            "caption_projection_dim": settings.heads * settings.head_width,
            "pooled_projection_dim": settings.word_width,
            "pos_embed_max_size": SIDE // settings.patch,
        }
    # Positions of rows and of columns get equal parts of a head, the rest is for the first of three axes.
    axis = 2 * ((settings.head_width - 2) // 4)
    packed = shared | {
        "in_channels": SHAPE[0] * settings.patch**2,
        "axes_dims_rope": [settings.head_width - 2 * axis, axis, axis],
    }
    if settings.network == "qwen_image":
        return packed | {"patch_size": settings.patch, "out_channels": SHAPE[0]}
    return packed | {
        "num_single_layers": settings.layers,
        "pooled_projection_dim": settings.word_width,
        "guidance_embeds": settings.guidance is not None,
    }


def _unet_settings(settings: DrawingSettings) -> dict[str, Any]:
    """Returns the arguments of a UNet that attends at the smallest side of the image alone, to itself and to the words."""
    plain = settings.patch.bit_length() - 1
    inner = settings.heads * settings.head_width
    widths = [inner >> halvings for halvings in range(plain, -1, -1)]
    return {
        "sample_size": SIDE,
        "in_channels": SHAPE[0],
        "out_channels": SHAPE[0],
        "block_out_channels": widths,
        "layers_per_block": settings.layers,
        "down_block_types": ["DownBlock2D"] * plain + ["CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D"] + ["UpBlock2D"] * plain,
        "cross_attention_dim": settings.word_width,
        # What diffusers' UNet calls the width of a head is the number of heads.
        "attention_head_dim": settings.heads,
        "norm_num_groups": math.gcd(widths[0], GROUPS),
    }
