"""Model folders and engines, made once a session."""

import pytest
import torch

from tests.engines.rollout.cases import Case, build_case, build_model
from tests.needs import NEEDS_VLLM

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tied"
    build_model(folder, "tied")
    return folder


@pytest.fixture(scope="session")
def odd_model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "odd"
    build_model(folder, "odd")
    return folder


@pytest.fixture(scope="session")
def wide_model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "wide"
    build_model(folder, "wide")
    return folder


@pytest.fixture(scope="session")
def _cases():
    return {}


@pytest.fixture(params=["torch", "virtual", pytest.param("vllm", marks=NEEDS_VLLM)])
def case(request, _cases, model_folder, wide_model_folder) -> Case:
    """An engine at version 0."""
    if request.param not in _cases:
        folder = wide_model_folder if request.param == "vllm" else model_folder
        _cases[request.param] = build_case(request.param, folder)
    built = _cases[request.param]
    built.engine.update_weights(built.weights(0), 0)
    return built


@pytest.fixture
def torch_engine(_cases, model_folder):
    """The torch engine at version 0, and its weights by version."""
    if "torch" not in _cases:
        _cases["torch"] = build_case("torch", model_folder)
    built = _cases["torch"]
    built.engine.update_weights(built.weights(0), 0)
    return built


@pytest.fixture
def vllm_case(_cases, wide_model_folder):
    """The vLLM engine at version 0, and its weights by version."""
    if "vllm" not in _cases:
        _cases["vllm"] = build_case("vllm", wide_model_folder)
    built = _cases["vllm"]
    built.engine.update_weights(built.weights(0), 0)
    return built
