"""A typed client of YATT's HTTP API."""

from yatt_client import errors, models
from yatt_client.client import Client

__all__ = ["Client", "errors", "models"]
