"""An engine is asked whether its answers have the same bits alone and in a crowd: on processors the two types differ in that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, VOCABULARY, build_model, vllm_case_of
from yatt_core.engines.rollout.vllm.invariance import repeats_in_a_crowd


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model whose matrices are wide enough for bfloat16's kernels to differ."""
    folder = tmp_path_factory.mktemp("models") / "paired"
    build_model(folder, "paired")
    return folder


@pytest.mark.parametrize(("dtype", "repeats"), [("float32", True), ("bfloat16", False)])
def test_the_probe_agrees_with_what_is_declared_on_processors(
    vllm_here: Any, folder: Any, dtype: str, repeats: bool
) -> None:
    engine = vllm_here(lambda: vllm_case_of(folder, dtype=dtype)).engine
    assert engine.capabilities["batch_invariant"] is repeats
    engine._core.core._engine.collective_rpc("reload_weights")  # as before the question on GPUs
    assert repeats_in_a_crowd(engine._core.core, VOCABULARY, MAX_PROMPT + MAX_NEW) is repeats
