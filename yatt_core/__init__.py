"""YATT's engine room: data, rewards, algorithms, engines and controllers, usable without a workflow or a database."""

__version__ = "0.1.0"
