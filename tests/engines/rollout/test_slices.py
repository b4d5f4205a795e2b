"""A response that is drawn in slices under the same weights is the one that is drawn at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.rollout.cases import STOP, build_case, prompts_of, request_of, rows_of
from yatt_core.protocols.generation import FINISHED_LENGTH, FINISHED_STOP, GenerateRequest, GenerateResult

SLICE = 7
MOST = 24


def in_slices(engine: Any, prompts: list[Any], seeds: Any, **options: Any) -> list[tuple[list[int], list[float], int]]:
    """Returns tokens, log-probabilities and finish of each response, drawn a slice at a time."""
    tokens: list[list[int]] = [[] for _ in prompts]
    log_probs: list[list[float]] = [[] for _ in prompts]
    finish = [FINISHED_LENGTH] * len(prompts)
    going = list(range(len(prompts)))
    while going:
        request = GenerateRequest(
            prompts=[np.concatenate([prompts[i], np.array(tokens[i], np.int32)]).astype(np.int32) for i in going],
            seeds=seeds[going],
            max_new_tokens=SLICE,
            stop_tokens=(STOP,),
            weight_version=0,
            limits=np.array([min(SLICE, MOST - len(tokens[i])) for i in going], dtype=np.int32),
            drawn=np.array([len(tokens[i]) for i in going], dtype=np.int32),
            **options,
        )
        result: GenerateResult = engine.generate(request)
        left = []
        for number, (new, probs, ended) in zip(going, rows_of(result), strict=True):
            tokens[number] += np.frombuffer(new, np.int32).tolist()
            log_probs[number] += np.frombuffer(probs, np.float32).tolist()
            finish[number] = int(ended)
            if ended == FINISHED_LENGTH and len(tokens[number]) < MOST:
                left.append(number)
        going = left
    return list(zip(tokens, log_probs, finish, strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"min_new_tokens": 10}, {"repetition_penalty": 1.3}, {"temperature": 0.7, "top_k": 5}]
)
def test_torch_goes_on_from_tokens_as_if_it_had_never_stopped(model_folder: Path, options: dict[str, Any]) -> None:
    engine = build_case("torch", model_folder).engine
    prompts = prompts_of([1, 3, 9, 40, 77, 100] * 4)
    seeds = np.arange(len(prompts), dtype=np.uint64)[:, None] + 5
    whole = engine.generate(request_of(prompts, seeds=seeds, max_new_tokens=MOST, **options))
    found = in_slices(engine, prompts, seeds, **options)
    assert FINISHED_STOP in {finish for _, _, finish in found}
    for (tokens, log_probs, finish), (expected, probs, ended) in zip(found, rows_of(whole), strict=True):
        assert tokens == np.frombuffer(expected, np.int32).tolist()
        assert finish == ended
        assert np.allclose(log_probs, np.frombuffer(probs, np.float32), atol=2e-5)


def test_what_goes_on_does_not_depend_on_its_batch(model_folder: Path) -> None:
    engine = build_case("torch", model_folder).engine
    prompts = prompts_of([4, 11, 30, 64, 90])
    seeds = np.arange(len(prompts), dtype=np.uint64)[:, None]
    together = in_slices(engine, prompts, seeds)
    for number in range(len(prompts)):
        part = slice(number, number + 1)
        assert in_slices(engine, prompts[part], seeds[part]) == together[part]
