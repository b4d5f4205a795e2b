"""The settings that vLLM's process takes are those of the spec."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from yatt_core.engines.rollout.served.engine import OF_YATT, process_settings
from yatt_core.engines.rollout.vllm.settings import settings_of
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.accelerated import VllmRollout

SPEC = VllmRollout(instances=2, tensor_parallel_size=2, pipeline_parallel_size=3, kv_cache_memory_bytes=7)


def test_every_key_of_the_spec_arrives() -> None:
    found = settings_of(process_settings(SPEC))
    assert asdict(found) == SPEC.model_dump(exclude=OF_YATT)
    assert found.devices == SPEC.devices == 6


def test_a_key_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unheard_of"):
        settings_of({**process_settings(SPEC), "unheard_of": 1})
