"""A vLLM engine that is sent changes alone computes with the bits of one that is sent all weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.rollout.cases import MAX_NEW, Case, build_model, prompts_of, request_of, rows_of, vllm_case_of
from tests.engines.sync.members import Members
from tests.engines.sync.test_transfers import CHANGES, Part, sharded
from tests.needs import NEEDS_VLLM
from yatt_core.engines.rectangles import part_digests

pytestmark = [NEEDS_VLLM, pytest.mark.verify, pytest.mark.timeout(900)]
LAYER = "model.layers.1."


def few_numbers_of_a_layer(values: torch.Tensor, name: str) -> None:
    if name.startswith(LAYER):
        values[..., ::7] += 0.25


def parts_of(ranks: list[list[Part]]) -> Iterator[Part]:
    return (part for rank in ranks for part in rank)


def differing(case: Case, ranks: list[list[Part]], dtype: str) -> list[str]:
    """Returns the names of the tensors of which the engine has other numbers than the ranks."""
    digests = part_digests(parts_of(ranks), dtype)
    found = case.engine.rectangle_digests(list(digests))
    assert found is not None
    return [rectangle.name for rectangle, one in zip(digests, found, strict=True) if digests[rectangle] != one]


@pytest.mark.parametrize("devices", [1, 2])
def test_changes_lead_to_the_bits_of_all_weights(tmp_path: Path, devices: int) -> None:
    """Changes in a single layer, in few numbers, in all, in none, and to NaN; from ranks that divide matrices either way."""
    build_model(tmp_path, "paired" if devices == 2 else "wide")
    case = vllm_case_of(tmp_path, takes_changes=True, tensor_parallel_size=devices)
    ranks = sharded(tmp_path, 0, 2)

    def answers(version: int) -> Any:
        return rows_of(
            case.engine.generate(request_of(prompts_of([40, 9]), max_new_tokens=MAX_NEW, weight_version=version))
        )

    with closing(case.engine):
        members = Members(2, [case.engine], most_bytes=1 << 16)
        sizes = [members.transfer(1, ranks, "float32", delta=True)[0].result()]
        before = answers(1)
        for part in parts_of(ranks):
            few_numbers_of_a_layer(part.values, part.name)
        sizes.append(members.transfer(2, ranks, "float32", delta=True)[0].result())
        changed = answers(2)
        assert not differing(case, ranks, "float32") and changed != before
        for each in Members(2, [case.engine], most_bytes=1 << 16).transfer(3, ranks, "float32"):
            each.result()
        assert answers(3) == changed, "all weights give the same bits"
        for version, change in enumerate(CHANGES[:3], start=4):
            for part in parts_of(ranks):
                change(part.values)  # type: ignore[no-untyped-call]
            sizes.append(members.transfer(version, ranks, "float32", delta=True)[0].result())
            assert not differing(case, ranks, "float32")
    whole, layer, few, _, none = sizes
    assert none == 0 < few < whole / 2 and 0 < layer < whole / 2
