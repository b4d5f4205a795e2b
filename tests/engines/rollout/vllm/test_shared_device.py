"""vLLM engines on one device: two of them take turns, and what they have captured computes with new weights.

On a GPU they sleep and replay CUDA graphs; on cores, where neither happens, the answers must be the same all the more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.engines.rollout.cases import MAX_NEW, Case, prompts_of, request_of, rows_of
from tests.engines.rollout.vllm.reference import largest_gap, module_with
from tests.needs import NEEDS_VLLM

pytestmark = [NEEDS_VLLM, pytest.mark.verify]
ON_GPU = torch.cuda.is_available()
SETTINGS: dict[str, Any] = {"dtype": "bfloat16" if ON_GPU else "float32", "kv_cache_memory_bytes": 64 << 20}
SMALL, LARGE = (5e-2, 1e-1) if ON_GPU else (1e-4, 1e-2)
"""What rounding may change in a log-probability, and less than what other weights change."""


@pytest.fixture
def pair(make_vllm_case: Callable[..., Case]) -> Iterator[tuple[Case, Case]]:
    cases = make_vllm_case(**SETTINGS), make_vllm_case(**SETTINGS)
    yield cases
    for case in cases:
        case.engine.close()  # type: ignore[attr-defined]


def batch(version: int = 0) -> Any:
    return request_of(prompts_of([37, 9, 64]), samples=2, max_new_tokens=MAX_NEW, weight_version=version)


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0] if ON_GPU else 0


def test_two_engines_take_turns_and_get_new_weights_while_they_sleep(pair: tuple[Case, Case]) -> None:
    """Each is updated once while the other one, and then it too, is asleep."""
    first, second = pair
    before = [rows_of(case.engine.generate(batch())) for case in pair]
    awake = free_bytes()
    first.engine.sleep()
    assert not ON_GPU or free_bytes() > awake
    assert rows_of(second.engine.generate(batch())) == before[1]
    second.engine.sleep()
    assert rows_of(first.engine.generate(batch())) == before[0], "a request wakes it"
    first.engine.sleep()
    for case in pair:
        case.engine.update_weights(case.weights(1), 1)
        found = case.engine.generate(batch(1))
        assert largest_gap(module_with(case.folder, case.weights(1)), batch(1), found) < SMALL
        assert largest_gap(module_with(case.folder, case.weights(0)), batch(1), found) > LARGE
        case.engine.sleep()


def test_what_was_captured_computes_with_weights_that_are_updated_in_place(make_vllm_case: Callable[..., Case]) -> None:
    """Requests of the same sizes, so that a GPU replays the same graphs; there and back again."""
    case = make_vllm_case(**SETTINGS)
    for version in (1, 2, 1):
        case.engine.update_weights(case.weights(version), version)
        found = case.engine.generate(batch(version))
        for other in (0, 1, 2):
            gap = largest_gap(module_with(case.folder, case.weights(other)), batch(version), found)
            assert gap < SMALL if other == version else gap > LARGE, (version, other)
