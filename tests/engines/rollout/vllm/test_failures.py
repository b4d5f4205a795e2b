"""An engine that cannot be opened: a model that vLLM cannot run is not a device whose memory others hold."""

from __future__ import annotations

import pytest

from tests.engines.rollout.cases import vllm_case_of
from tests.needs import NEEDS_VLLM
from yatt_core.engines.rollout.vllm.failures import lacking_mode, opening_failure
from yatt_core.errors import ConfigurationError, InfrastructureError

BUSY = "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.9, 71.3 GiB)."


@pytest.mark.parametrize(
    "error", [ValueError(BUSY), MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate")]
)
def test_memory_that_others_hold_may_be_free_later(error: Exception) -> None:
    found = opening_failure("models/a", error, starting=True)
    assert isinstance(found, InfrastructureError) and str(found).startswith("models/a: ") and str(error) in str(found)


def test_a_model_that_vllm_cannot_run_never_becomes_one_that_it_can() -> None:
    for error, starting in ((ValueError("Head size 13 is not supported"), True), (ValueError("memory"), False)):
        assert isinstance(opening_failure("models/a", error, starting), ConfigurationError)


def test_a_class_of_models_that_needs_another_package_is_named_with_it() -> None:
    """As vLLM's LLaVA needs torchvision, which is not installed beside torch's build for CPUs."""
    missing = ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
    found = opening_failure("models/a", missing, starting=False)
    assert isinstance(found, ConfigurationError)
    assert str(found).startswith("models/a: ") and "torchvision" in str(found) and "rollout.engine.kind" in str(found)


def test_a_model_without_vllms_mode_names_the_engine_and_the_key() -> None:
    """With what vLLM 0.32 raises for such a model, and for anything else that happens while it starts."""
    lacks = RuntimeError("VLLM batch_invariant mode is not supported for model architectures A")
    found = lacking_mode("models/a", lacks)
    assert isinstance(found, ConfigurationError)
    assert str(found).startswith("models/a: exact: must be false or auto, because the vLLM engine ")
    assert "rollout.engine" in str(found) and str(lacks) in str(found)
    assert lacking_mode("models/a", RuntimeError("the worker died")) is None


@NEEDS_VLLM
@pytest.mark.verify
def test_a_cache_beyond_the_memory_of_the_machine_is_a_failure_of_infrastructure(wide_model_folder) -> None:
    with pytest.raises(InfrastructureError, match="memory"):
        vllm_case_of(wide_model_folder, kv_cache_memory_bytes=1 << 42)
