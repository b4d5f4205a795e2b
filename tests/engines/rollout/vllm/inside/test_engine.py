"""What a vLLM engine does with its weights and its prefix cache, seen from inside its process."""

from __future__ import annotations

import pytest

from tests.engines.rollout.cases import prompts_of, request_of, rows_of
from tests.engines.rollout.vllm.inside.conftest import core_of
from tests.engines.rollout.vllm.reference import LARGE, answers_by_seed, gap_after_update


def test_without_the_workaround_a_tied_head_stays_old(case_here, monkeypatch):
    """Fails once vLLM repacks the head by itself: then `refresh_tied_head` can be removed."""
    from yatt_core.engines.rollout.vllm import weights

    monkeypatch.setattr(weights, "refresh_tied_head", lambda _: None)
    assert gap_after_update(case_here) > LARGE


def prefix_hits(case, monkeypatch) -> list[int]:
    """Returns a list that collects, for each response that ends from now on, how many prompt tokens the cache held."""
    found: list[int] = []
    core = core_of(case)
    step = core.step

    def watched():
        outputs = step()
        found.extend(output.num_cached_tokens for output in outputs)
        return outputs

    monkeypatch.setattr(core, "step", watched)
    return found


def test_bits_do_not_depend_on_what_the_prefix_cache_holds(case_here, monkeypatch):
    """Covers prompts read in full, cached in full, and cached in part after another prompt with the same beginning."""
    long = prompts_of([300])[0]
    prompts = [long[:length] for length in (300, 161, 130, 97, 70, 33)]
    seeds = [1, 2, 3]

    def forget():
        case_here.engine.update_weights(case_here.weights(0), 0)

    found = prefix_hits(case_here, monkeypatch)
    expected = dict[tuple[int, int], tuple]()
    for place, prompt in enumerate(prompts):
        for seed in seeds:
            forget()
            expected[place, seed] = answers_by_seed(case_here, [prompt], [seed])[0, seed]
    assert set(found) == {0}
    for order in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]):
        forget()
        for place in order:
            for seed in seeds:
                assert answers_by_seed(case_here, [prompts[place]], [seed])[0, seed] == expected[place, seed]
    assert set(found) == {0, 32, 64, 96, 128, 160, 288}
    forget()
    assert answers_by_seed(case_here, prompts, seeds) == expected, "together, from an empty cache"
    assert answers_by_seed(case_here, prompts, seeds) == expected, "together, with everything cached"


def test_an_interrupted_update_leaves_the_engine_without_weights_until_the_next(case_here, monkeypatch):
    from yatt_core.engines.rollout.vllm import weights

    request = request_of(prompts_of([5, 19]), samples=4)
    before = rows_of(case_here.engine.generate(request))
    whole = weights.as_tensor

    converted = []

    def broken(array, kind):
        converted.append(array)
        if len(converted) == 6:
            raise MemoryError
        return whole(array, kind)

    monkeypatch.setattr(weights, "as_tensor", broken)
    with pytest.raises(MemoryError):
        case_here.engine.update_weights(case_here.weights(1), 1)
    assert case_here.engine.version == -1
    monkeypatch.setattr(weights, "as_tensor", whole)
    case_here.engine.update_weights(case_here.weights(0), 0)
    assert rows_of(case_here.engine.generate(request)) == before
