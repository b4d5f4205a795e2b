"""Marks for tests that need more than the base installation."""

import pytest

from yatt_core.engine_environments import VLLM, is_installed
from yatt_core.installed import MEGATRON, PEFT, has_distribution

NEEDS_VLLM = pytest.mark.skipif(not is_installed(VLLM, None), reason="needs an environment of vLLM's: make engines")
NEEDS_MEGATRON = pytest.mark.skipif(not has_distribution(MEGATRON), reason="needs the extra megatron")
NEEDS_PEFT = pytest.mark.skipif(not has_distribution(PEFT), reason="needs the extra lora")
# As texts, so that only tests with these marks import torch for them.
NEEDS_GPU = pytest.mark.skipif("__import__('torch').cuda.device_count() < 1", reason="needs a GPU")
NEEDS_TWO_GPUS = pytest.mark.skipif("__import__('torch').cuda.device_count() < 2", reason="needs two GPUs")
