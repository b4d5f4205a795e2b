"""The methods of a spec that are functions of its user: each is found, and in an exact run vouched for by its source."""

from __future__ import annotations

from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.algorithms.losses.custom import CustomLoss
from yatt_core.algorithms.own import ADVANTAGES, LOSSES, verify_source
from yatt_core.spec.run import RunSpec


def verify_methods(spec: RunSpec) -> None:
    """Raises `ConfigurationError` for a function that is missing, or, in an exact run, whose source has changed."""
    loss, advantage = spec.algorithm.loss, spec.algorithm.advantage
    if isinstance(loss, CustomLoss):
        verify_source(loss.function, LOSSES, loss.sha256 if spec.exact else None)
    if isinstance(advantage, CustomAdvantage):
        verify_source(advantage.function, ADVANTAGES, advantage.sha256 if spec.exact else None)
