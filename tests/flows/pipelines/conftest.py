"""The inputs that all simulated runs begin with, made once."""

from tests.flows.soups.conftest import inputs

__all__ = ["inputs"]
