"""The methods for the policy's entropy that a spec can name, one line each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from yatt_core.algorithms.entropy.adaptive import AdaptiveEntropy
from yatt_core.algorithms.entropy.bonus import EntropyBonus
from yatt_core.algorithms.entropy.clip_cov import CovarianceClip

EntropySpec = Annotated[EntropyBonus | AdaptiveEntropy | CovarianceClip, Field(discriminator="kind")]
