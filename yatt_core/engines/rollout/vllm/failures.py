"""Which of YATT's errors tells that a vLLM engine could not be opened.

vLLM raises `ValueError` both for a model that it cannot run and for a device whose memory others hold. The latter may be
free again later.
"""

from __future__ import annotations

import re

from yatt_core.errors import ConfigurationError, InfrastructureError

MEMORY = re.compile(r"\bmemory\b", re.IGNORECASE)
"""In all of vLLM's messages about too little memory, and in none about a model."""


LACKS_MODE = "batch_invariant mode is not supported"
"""In what vLLM raises for a model or device without its batch-invariant mode."""


def lacking_mode(model_path: str, error: Exception) -> ConfigurationError | None:
    """Returns the error to raise where vLLM has no batch-invariant mode, which an exact run needs; None for another error."""
    if LACKS_MODE not in str(error):
        return None
    return ConfigurationError(
        f"{model_path}: exact: must be false or auto, because the vLLM engine of this model (rollout.engine, or a judge's) has "
        f"no batch-invariant mode here: {error}; or choose kind: torch without continuous, which decodes planned batches"
    )


def opening_failure(model_path: str, error: Exception, starting: bool) -> ConfigurationError | InfrastructureError:
    """Returns the error to raise.

    starting: whether the model and its settings had been accepted, so that a message about memory is about the device.
    """
    if isinstance(error, MemoryError) or (starting and MEMORY.search(str(error))):
        return InfrastructureError(
            f"{model_path}: the device has too little free memory for vLLM: {error}. It is tried again, within the budget of "
            "infrastructure failures; if nothing else uses the device, lower rollout.engine.gpu_memory_utilization or "
            "max_num_seqs (for a judge, those of its engine)"
        )
    if isinstance(error, ModuleNotFoundError):
        return ConfigurationError(
            f"{model_path}: vLLM's class for this model needs the package {error.name}, which is not installed; expected a "
            "text model, or rollout.engine.kind: torch (for a judge, its engine's) for a model with a vision tower"
        )
    return ConfigurationError(f"{model_path}: vLLM cannot run this model here: {error}")
