"""Marks for tests that need more than the base installation."""

import sys
from pathlib import Path

import pytest

from yatt_core.engine_environments import ENGINES, VLLM, is_installed
from yatt_core.installed import DIFFUSERS, MEGATRON, PEFT, has_distribution

# One that is there and lacks something is no reason to leave tests out: they fail.
HAS_VLLM = (Path(sys.prefix) / ENGINES / VLLM.name).exists() or is_installed(VLLM, None)
NEEDS_VLLM = pytest.mark.skipif(not HAS_VLLM, reason="needs an environment of vLLM's: make engines")
# It repeats its bits on an AMD EPYC with AVX512-BF16, and is refused there as well.
VLLM_DIFFERS_IN_BFLOAT16 = "GenuineIntel" in Path("/proc/cpuinfo").read_text()
NEEDS_MEGATRON = pytest.mark.skipif(not has_distribution(MEGATRON), reason="needs the extra megatron")
NEEDS_DIFFUSERS = pytest.mark.skipif(not has_distribution(DIFFUSERS), reason="needs the extra diffusion")
NEEDS_PEFT = pytest.mark.skipif(not has_distribution(PEFT), reason="needs the extra lora")
# As texts, so that only tests with these marks import torch for them.
NEEDS_GPU = pytest.mark.skipif("__import__('torch').cuda.device_count() < 1", reason="needs a GPU")
NEEDS_TWO_GPUS = pytest.mark.skipif("__import__('torch').cuda.device_count() < 2", reason="needs two GPUs")
