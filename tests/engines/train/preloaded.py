"""Imported by the process that ranks are forked from: everything they need, and nothing that starts a thread."""

from importlib.util import find_spec

from transformers.models.qwen2 import modeling_qwen2

from yatt_core.engines.train.fsdp2 import engine as fsdp2_engine
from yatt_core.engines.train.megatron.cpu import on_this_device
from yatt_core.engines.train.torch import engine as torch_engine

if find_spec("megatron"):
    with on_this_device():
        from megatron.core import distributed, optimizer, pipeline_parallel  # noqa: F401
        from megatron.core.models.gpt import gpt_layer_specs, gpt_model  # noqa: F401

__all__ = ["fsdp2_engine", "modeling_qwen2", "torch_engine"]
