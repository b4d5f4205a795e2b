"""The sizes of a first spec: always valid, whatever the data and the model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ops.starter.sizes import fitting_devices, fitting_sizes

GIB = 1 << 30


@given(
    rows=st.integers(2, 10_000),
    longest=st.integers(1, 5_000),
    positions=st.none() | st.integers(8, 200_000),
    parameters=st.integers(1, 10**12),
)
def test_sizes_fit_rows_and_positions(rows: int, longest: int, positions: int | None, parameters: int) -> None:
    sizes = fitting_sizes(rows, longest, positions, parameters, 2)
    assert 1 <= sizes.prompts_per_iteration < rows
    assert sizes.prompts_per_iteration % sizes.logical_shards == 0
    assert sizes.max_prompt_tokens >= 1 and sizes.max_new_tokens >= 1
    assert positions is None or sizes.max_prompt_tokens + sizes.max_new_tokens <= positions
    assert sizes.skips == (longest > sizes.max_prompt_tokens)


def test_forty_rows() -> None:
    sizes = fitting_sizes(40, 11, 256, 84_800, 2)
    assert (sizes.prompts_per_iteration, sizes.max_prompt_tokens, sizes.max_new_tokens) == (32, 32, 224)


def test_a_model_that_fits_once_gets_one_process() -> None:
    assert fitting_devices(gpus=0, cores=8, memory=24 * GIB, parameters=10**8) == 2
    assert fitting_devices(gpus=0, cores=8, memory=24 * GIB, parameters=10**9) == 1
    assert fitting_devices(gpus=8, cores=8, memory=24 * GIB, parameters=10**9) == 8
