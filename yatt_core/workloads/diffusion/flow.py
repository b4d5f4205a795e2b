"""Flow matching, and its stochastic sampling by Flow-GRPO (arXiv 2505.05470).

At time t, from 1 (noise) to 0 (image), latents are x = (1 - t) image + t noise; the network predicts the velocity
v = noise - image. The ODE's step is x + v dt with dt < 0. The SDE that has the same distribution at every time takes

    mean       x + (v + s^2 / (2 t) (x + (1 - t) v)) dt
    deviation  s sqrt(-dt),   s = a sqrt(t / (1 - t))

with the noise level a. s has no bound at t = 1; there, 1 - t is that of the step's end, as in the authors' experiments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from yatt_core.workloads.diffusion.gaussians import GaussianStep, by_image, computed_in

MODEL_TIMES = 1000.0
"""Networks of diffusers are told 1000 t."""


@dataclass(frozen=True, slots=True)
class FlowProcess:
    """A flow in `SamplingProcess`'s terms.

    noise_level: Flow-GRPO's a.
    shift: times are s t / (1 + (s - 1) t); above 1, more steps are near the noise (SD3, arXiv 2403.03206).
    """

    noise_level: float = 0.7
    shift: float = 1.0

    def grid(self, steps: int) -> torch.Tensor:
        """See `SamplingProcess`. Evenly spaced from 1 to 0, then shifted once."""
        times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        return self.shift * times / (1 + (self.shift - 1) * times)

    def model_times(self, times: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`."""
        return (times * MODEL_TIMES).to(torch.float32)

    def gaussian(
        self, prediction: torch.Tensor, latents: torch.Tensor, times: torch.Tensor, afters: torch.Tensor
    ) -> GaussianStep:
        """See `SamplingProcess`; the module's first lines have the formula."""
        state = computed_in(latents)
        # All factors are computed in float64 and rounded once, so that they do not depend on the batch.
        lengths = afters - times
        squares = self.noise_level**2 * times / (1 - torch.where(times == 1, afters, times))
        drift = squares / (2 * times)
        of_state = by_image(1 + drift * lengths, state)
        of_velocity = by_image((1 + drift * (1 - times)) * lengths, state)
        mean = state * of_state + prediction.to(state.dtype) * of_velocity
        return GaussianStep(mean, (squares * -lengths).sqrt().to(device=state.device, dtype=state.dtype))

    def straight(
        self, prediction: torch.Tensor, latents: torch.Tensor, times: torch.Tensor, afters: torch.Tensor
    ) -> torch.Tensor:
        """See `SamplingProcess`: Euler's step of the ODE."""
        state = computed_in(latents)
        return (state + prediction.to(state.dtype) * by_image(afters - times, state)).to(latents.dtype)

    def at(self, shares: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`."""
        return shares

    def noised(self, images: torch.Tensor, noise: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`."""
        return by_image(1 - times, images) * images + by_image(times, images) * noise

    def target(self, images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """See `SamplingProcess`: the velocity."""
        return noise - images
