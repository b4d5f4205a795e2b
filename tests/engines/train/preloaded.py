"""Imported by the process that ranks are forked from: all that they need, and nothing that starts a thread."""

from transformers.models.qwen2 import modeling_qwen2

from yatt_core.engines.train import torch_engine
from yatt_core.engines.train.fsdp2 import engine

__all__ = ["engine", "modeling_qwen2", "torch_engine"]
