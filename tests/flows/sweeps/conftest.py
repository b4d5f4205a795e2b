"""The inputs that all simulated sweeps begin with, made once."""

from tests.flows.soups.conftest import inputs

__all__ = ["inputs"]
