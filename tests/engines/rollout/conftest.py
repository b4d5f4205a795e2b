"""Model folders and engines, made once per session."""

import pytest
import torch

from tests.engines.rollout.cases import Case, build_case, build_model, vllm_case_of
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


@pytest.fixture(scope="package")
def make_vllm_case(wide_model_folder):
    """Returns a function that builds a case from engine settings, with the weights of version 0."""
    made = list[Case]()

    def make(**settings) -> Case:
        made.append(vllm_case_of(wide_model_folder, **settings))
        made[-1].engine.update_weights(made[-1].weights(0), 0)
        return made[-1]

    yield make
    for case in made:
        case.engine.close()


@pytest.fixture(scope="package")
def _vllm_case(make_vllm_case):
    return make_vllm_case()


@pytest.fixture(
    params=[
        "torch",
        "torch-general",
        "torch-waiting",
        "torch-continuous",
        "virtual",
        pytest.param("vllm", marks=NEEDS_VLLM),
    ]
)
def case(request, _cases, model_folder) -> Case:
    """Returns an engine at version 0."""
    if request.param == "vllm":
        built = request.getfixturevalue("_vllm_case")
    elif request.param in _cases:
        built = _cases[request.param]
    else:
        built = _cases[request.param] = build_case(request.param, model_folder)
    built.engine.update_weights(built.weights(0), 0)
    return built


@pytest.fixture
def torch_engine(_cases, model_folder):
    """Returns the torch engine at version 0, and its weights by version."""
    if "torch" not in _cases:
        _cases["torch"] = build_case("torch", model_folder)
    built = _cases["torch"]
    built.engine.update_weights(built.weights(0), 0)
    return built


@pytest.fixture
def vllm_case(_vllm_case):
    """Returns the vLLM engine at version 0, and its weights by version."""
    _vllm_case.engine.update_weights(_vllm_case.weights(0), 0)
    return _vllm_case
