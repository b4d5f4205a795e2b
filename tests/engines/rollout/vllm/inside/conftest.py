"""Engines that run in this process, so that tests can look inside and change them. Cleans up what vLLM leaves behind.

These tests run with the Python of vLLM's environment, one process for each file (`test_inside.py`).
"""

import os
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import pytest

from tests.engines.rollout.cases import Case, vllm_case_of
from tests.engines.rollout.conftest import wide_model_folder
from yatt_core.engines.rollout.served import engine as module
from yatt_core.engines.rollout.served.launch import Launch
from yatt_core.engines.rollout.served.process import EngineProcess
from yatt_core.engines.rollout.served.protocol import Opening, frame_of, value_of

__all__ = ["wide_model_folder"]


class LocalCore:
    """Calls an engine in this process, with what the protocol would make of arguments and results."""

    is_lost = False
    versions: Mapping[str, str] = {"torch": metadata.version("torch")}

    def __init__(
        self,
        launch: Launch,
        environment: str | None,
        opening: Opening,
        address: str,
        started: Callable[[EngineProcess], None],
    ) -> None:
        os.environ.update(launch.variables(True, address, opening.invariant))
        sys.modules["torch._dynamo.config"].disable = True  # its variable has already been read
        from yatt_core.engines.rollout.vllm.core import VllmCore

        self.core = VllmCore(value_of(frame_of(opening)))

    def call(self, method: str, *arguments: Any) -> Any:
        return value_of(frame_of(getattr(self.core, method)(*value_of(frame_of(arguments)))))


def modules_with_proxies() -> list[str]:
    """Returns the modules with proxies of Flask, which raise outside of a request: vLLM 0.32 looks into every value."""
    values = (
        (name, value)
        for name, module in list(sys.modules.items())
        for value in list(getattr(module, "__dict__", {}).values())
    )
    return sorted({name for name, value in values if type(value).__name__ == "LocalProxy"})


def core_of(case: Case) -> Any:
    """Returns vLLM's engine of a case in this process."""
    return case.engine._core.core._engine


@pytest.fixture(scope="package")
def vllm_here():
    """Returns a function that calls another one, whose vLLM engines run in this process. Cleans up afterwards.

    vLLM leaves behind torch's default process group, which other tests create themselves, and a changed environment,
    which the children of other tests would inherit. Engines are kept alive because one that is freed also frees what it
    shares with the others in its process.
    """
    import torch._dynamo.config

    environment = dict(os.environ)
    set_num_threads = torch.set_num_threads
    kept = list[Any]()

    def build(make):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "EngineProcess", LocalCore)
            for name in modules_with_proxies():
                patch.delitem(sys.modules, name)
            kept.append(make())
        return kept[-1]

    yield build
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    kept.clear()
    cleanup_dist_env_and_memory()
    torch.set_num_threads = set_num_threads
    os.environ.clear()
    os.environ.update(environment)
    torch._dynamo.config.disable = False


@pytest.fixture(scope="package")
def make_case_here(vllm_here, wide_model_folder):
    """Returns a function that builds a case in this process, with the weights of version 0."""

    def make(**settings) -> Case:
        made = vllm_here(lambda: vllm_case_of(wide_model_folder, **settings))
        made.engine.update_weights(made.weights(0), 0)
        return made

    return make


@pytest.fixture(scope="package")
def _case_here(make_case_here):
    return make_case_here()


@pytest.fixture
def case_here(_case_here):
    """Returns an engine in this process, at version 0, and its weights by version."""
    _case_here.engine.update_weights(_case_here.weights(0), 0)
    return _case_here
