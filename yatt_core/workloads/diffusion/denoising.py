"""Denoising by DDIM (arXiv 2010.02502), whose noise makes a policy of it (DDPO, 2305.13301).

At level t of `levels`, latents are x = sqrt(a) image + sqrt(1 - a) noise, where a falls with t; the network predicts the
noise e. A step from a to b (b > a) takes

    deviation  s = eta sqrt((1 - b) / (1 - a)) sqrt(1 - a / b)
    mean       sqrt(b) (x - sqrt(1 - a) e) / sqrt(a) + sqrt(1 - b - s^2) e

and is deterministic with eta 0. The last step arrives at the image itself, b = 1, and has no noise whatever eta is: it is taken
straight. The estimate of the image is not clipped, since that would move the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensor

from yatt_core.workloads.diffusion.gaussians import GaussianStep, by_image, computed_in

IMAGE = -1.0
"""The level after the last step."""


@dataclass(frozen=True, slots=True)
class DenoisingProcess:
    """Denoising in `SamplingProcess`'s terms; times are levels, from `levels` - 1 (noise) to -1 (image).

    eta: 0 is deterministic, 1 the noise of DDPM (arXiv 2006.11239).
    levels: number of levels the network was trained on.
    first_beta, last_beta: the noise added at the first and the last level; those between lie evenly.
    """

    eta: float = 1.0
    levels: int = 1000
    first_beta: float = 1e-4
    last_beta: float = 0.02

    def signals(self, times: torch.Tensor) -> torch.Tensor:
        """Returns a for each level, [B], float64: 1 for the image."""
        betas = torch.linspace(self.first_beta, self.last_beta, self.levels, dtype=torch.float64)
        table = torch.cat([betas.new_ones(1), (1 - betas).cumprod(0)])
        return table[(times + 1).long()]

    def grid(self, steps: int) -> torch.Tensor:
        """See `SamplingProcess`. Evenly spaced from the last level on (`trailing` in arXiv 2305.08891), then the image."""
        return (torch.linspace(self.levels, 0, steps + 1, dtype=torch.float64) - 1).round()

    def model_times(self, times: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`."""
        return times.to(torch.float32)

    def gaussian(
        self, prediction: torch.Tensor, latents: torch.Tensor, times: torch.Tensor, afters: torch.Tensor
    ) -> GaussianStep:
        """See `SamplingProcess`. Raises `ValueError` for a step without noise: the last one, or any with eta 0."""
        deviations = self._deviations(times, afters, self.eta)
        # In FakeTensorMode there are sizes and no numbers.
        if not isinstance(deviations, FakeTensor) and not bool((deviations > 0).all()):
            raise ValueError("a step to the image itself, or with eta 0, has no noise: no log-probability")
        mean = self._mean(prediction, computed_in(latents), (times, afters), deviations)
        return GaussianStep(mean, deviations.to(device=mean.device, dtype=mean.dtype))

    def straight(
        self, prediction: torch.Tensor, latents: torch.Tensor, times: torch.Tensor, afters: torch.Tensor
    ) -> torch.Tensor:
        """See `SamplingProcess`: DDIM with eta 0."""
        nothing = torch.zeros_like(times)
        return self._mean(prediction, computed_in(latents), (times, afters), nothing).to(latents.dtype)

    def at(self, shares: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`: whole levels."""
        return (shares * self.levels).floor()

    def noised(self, images: torch.Tensor, noise: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`."""
        signals = self.signals(times)
        return by_image(signals.sqrt(), images) * images + by_image((1 - signals).sqrt(), images) * noise

    def target(self, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`: the noise."""
        return noise

    def _deviations(self, times: torch.Tensor, afters: torch.Tensor, eta: float) -> torch.Tensor:
        before = self.signals(times)
        after = self.signals(afters)
        return eta * ((1 - after) / (1 - before)).sqrt() * (1 - before / after).sqrt()

    def _mean(
        self,
        prediction: torch.Tensor,
        state: torch.Tensor,
        between: tuple[torch.Tensor, torch.Tensor],
        deviations: torch.Tensor,
    ) -> torch.Tensor:
        before = self.signals(between[0])
        after = self.signals(between[1])
        of_state = (after / before).sqrt()
        # Rounding may leave a little less than nothing under the root of a step to the image.
        of_noise = (1 - after - deviations.square()).clamp(min=0).sqrt() - of_state * (1 - before).sqrt()
        return state * by_image(of_state, state) + prediction.to(state.dtype) * by_image(of_noise, state)
