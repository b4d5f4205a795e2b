"""What `exact: aligned` needs of a spec: each setting under which trainer and sampler could differ is refused by its key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spec.trees import mistakes, spec, tells


def test_an_aligned_run_is_exact_and_refuses_what_is_not():
    made = spec(exact="aligned")
    assert made.is_exact and made.must_be_exact and made.aligned
    assert not spec(exact=True).aligned and spec(exact=True).must_be_exact
    assert not spec().must_be_exact
    cut = {"kind": "valid_group", "overdispatch": {"factor": 1.5}}
    (line,) = mistakes(dynamic_sampling=cut, exact="aligned")
    assert tells(line, "exact: aligned cannot hold", "dynamic_sampling.overdispatch")


BF16 = {"kind": "torch", "dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rollout__engine": {"kind": "vllm", "dtype": "float32"}}, ("rollout.engine.kind is vllm", "torch")),
        ({"trainer__engine": {"kind": "fsdp2", "ranks": 2}}, ("trainer.engine.kind is fsdp2", "torch")),
        ({"trainer__engine": {"kind": "megatron"}}, ("trainer.engine.kind is megatron", "torch")),
        ({"trainer__engine": BF16}, ("rollout.engine.dtype is float32", "trainer.engine.dtype bfloat16")),
        ({"rollout__engine": {"kind": "torch", "kernels": "general"}}, ("rollout.engine.kernels is general", "auto")),
        ({"trainer__engine": {"kind": "torch", "kernels": "general"}}, ("trainer.engine.kernels is general", "auto")),
        ({"trainer__lora": {}}, ("trainer.lora", "null")),
        ({"rollout__top_p": 0.9}, ("rollout.top_p is 0.9", "it needs 1.0")),
        ({"rollout__top_k": 5}, ("rollout.top_k is 5", "it needs null")),
        ({"rollout__min_p": 0.1}, ("rollout.min_p is 0.1", "it needs 0.0")),
        ({"rollout__repetition_penalty": 1.1}, ("rollout.repetition_penalty is 1.1",)),
        ({"rollout__min_new_tokens": 2}, ("rollout.min_new_tokens is 2", "it needs 0")),
        ({"rollout__tools": {"functions": [{"name": "c", "function": "calculator"}]}}, ("rollout.tools", "null")),
        ({"rollout__slice_tokens": 8}, ("rollout.slice_tokens", "null")),
        ({"rollout__tail": {}}, ("rollout.tail", "null")),
        ({"asynchrony__lag": 1}, ("asynchrony.lag is 1", "it needs 0")),
        ({"asynchrony__streamed": True}, ("asynchrony.streamed", "false")),
    ],
)
def test_what_could_differ_is_refused_by_its_key(changes: dict[str, Any], says: tuple[str, ...]):
    spec(**changes)
    lines = mistakes(**changes, exact="aligned")
    assert any(tells(line, "exact: aligned", *says, "true, auto or false") for line in lines)


def test_both_engines_in_bfloat16_may_be_aligned():
    assert spec(rollout__engine=BF16, trainer__engine=BF16, exact="aligned").aligned
