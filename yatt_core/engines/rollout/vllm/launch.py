"""How vLLM's process is started; imports nothing of vLLM."""

from __future__ import annotations

from yatt_core.engine_environments import VLLM
from yatt_core.engines.rollout.served.launch import Launch
from yatt_core.engines.rollout.vllm.environment import engine_environment

VLLM_LAUNCH = Launch(VLLM, "yatt_core.engines.rollout.vllm.serving", engine_environment)
