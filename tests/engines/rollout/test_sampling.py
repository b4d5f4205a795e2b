"""Counter-based noise, and draws from it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.matrix import examples
from yatt_core.engines.noise import uniforms
from yatt_core.engines.rollout.torch.sampling import draw, greedy, penalised, support_of, truncated

ROWS = 200_000
EXPECTED = [[2802244911, 3011683077], [1581361928, 4052577513], [1572997799, 3181733514]]


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    """Returns Pearson's statistic in standard deviations above its mean."""
    expected = shares * counts.sum()
    kept = expected > 0
    assert counts[~kept].sum() == 0
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def sample(logits, noise, temperature, top_p, top_k=0, min_p=0.0):
    """Draws as the engine does."""
    return draw(truncated(logits.float() / temperature, top_p, top_k, min_p), noise)


def test_noise_is_pinned():
    """A change to these numbers would change every run."""
    noise = uniforms(np.array([0, 1, 2**64 - 1], np.uint64), 2)
    assert (noise * 2**32).astype(np.uint64).tolist() == EXPECTED


def test_noise_depends_only_on_seed_and_position():
    seeds = np.random.default_rng(0).integers(0, 2**63, 50).astype(np.uint64)
    noise = uniforms(seeds, 40)
    assert (uniforms(seeds[7:9], 40) == noise[7:9]).all()
    assert (uniforms(seeds, 10) == noise[:, :10]).all()


@pytest.mark.parametrize("seeds", ["consecutive", "increments"])
def test_noise_is_uniform_and_independent(seeds):
    """Holds for seeds one apart, and one generator increment apart, whose plain streams would be shifted copies."""
    step = 1 if seeds == "consecutive" else 0x9E3779B97F4A7C15
    noise = uniforms(np.arange(ROWS, dtype=np.uint64) * np.uint64(step), 4)
    assert noise.dtype == np.float64 and noise.min() >= 0 and noise.max() < 1
    assert len(np.unique(noise[:, 0])) > 0.9999 * ROWS
    assert abs(chi_square(np.histogram(noise, 1000, (0, 1))[0], np.full(1000, 1e-3))) < 5
    low_bits = (noise * 2**32).astype(np.uint64) & np.uint64(255)
    assert abs(chi_square(np.bincount(low_bits.ravel().astype(int), minlength=256), np.full(256, 1 / 256))) < 5
    neighbours = [(noise[:-1, 0], noise[1:, 0]), (noise[:, 0], noise[:, 1]), (noise[:-1, 1], noise[1:, 0])]
    for one, other in neighbours:
        pairs = np.histogram2d(one, other, 20, ((0, 1), (0, 1)))[0].ravel()
        assert abs(chi_square(pairs, np.full(400, 1 / 400))) < 5


def test_draws_follow_the_softmax():
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)) * 2
    noise = torch.from_numpy(uniforms(np.arange(ROWS, dtype=np.uint64), 1)[:, 0])
    tokens, log_probs = sample(logits.expand(ROWS, -1), noise, 0.7, 1.0)
    expected = torch.log_softmax(logits.double() / 0.7, -1)[0]
    assert abs(chi_square(np.bincount(tokens.numpy(), minlength=30), expected.exp().numpy())) < 5
    assert log_probs.dtype == torch.float32
    assert (log_probs - expected[tokens]).abs().max() < 3e-6


def test_top_p_keeps_the_fewest_tokens_that_reach_it_and_renormalises():
    shares = torch.tensor([0.05, 0.4, 0.1, 0.3, 0.15])
    noise = torch.from_numpy(uniforms(np.arange(ROWS, dtype=np.uint64), 1)[:, 0])
    tokens, log_probs = sample(shares.log().expand(ROWS, -1), noise, 1.0, 0.75)
    expected = np.array([0, 0.4, 0, 0.3, 0.15]) / 0.85
    assert abs(chi_square(np.bincount(tokens.numpy(), minlength=5), expected)) < 5
    assert np.allclose(log_probs.exp().numpy(), expected[tokens.numpy()], atol=1e-6)


def test_top_p_below_the_likeliest_token_keeps_that_one():
    shares = torch.tensor([[0.2, 0.5, 0.3]])
    tokens, log_probs = sample(shares.log(), torch.tensor([0.999], dtype=torch.float64), 1.0, 0.1)
    assert tokens.tolist() == [1] and log_probs.tolist() == [0.0]


@pytest.mark.parametrize(("noise", "token"), [(0.0, 1), (0.4999, 1), (0.5001, 3), (1 - 2**-32, 3)])
def test_extreme_noise_draws_tokens_that_have_mass(noise, token):
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    tokens, log_probs = sample(logits, torch.tensor([noise], dtype=torch.float64), 1.0, 1.0)
    assert tokens.tolist() == [token]
    assert log_probs.tolist() == pytest.approx([-np.log(2)])


def test_greedy_takes_the_likeliest_at_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    tokens, log_probs = greedy(logits)
    assert tokens.tolist() == [1, 0]
    assert torch.equal(log_probs, torch.log_softmax(logits, -1)[[0, 1], [1, 0]])


def processors(prompt, stops, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, penalty=1.0, least=0):
    """Returns Hugging Face's processors in the engines' order.

    prompt: number of tokens of the prompt.
    """
    made = LogitsProcessorList([MinNewTokensLengthLogitsProcessor(prompt, least, list(stops))] if least else [])
    made.append(RepetitionPenaltyLogitsProcessor(penalty))
    made.append(TemperatureLogitsWarper(temperature))
    made += [MinPLogitsWarper(min_p)] if min_p else []
    made += [TopKLogitsWarper(top_k)] if top_k else []
    made += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    return made


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spread=st.floats(0.1, 8.0),
    temperature=st.floats(0.2, 3.0),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    top_k=st.integers(0, 40),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
    penalty=st.one_of(st.just(1.0), st.floats(0.5, 3.0)),
)
def test_the_distribution_is_that_of_hugging_faces_processors(seed, spread, temperature, top_p, top_k, min_p, penalty):
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 37, generator=noise) * spread
    tokens = torch.randint(0, 37, (3, 9), generator=noise)
    expected = processors(9, (), temperature, top_p, top_k, min_p, penalty)(tokens, logits.clone()).softmax(-1)
    seen = torch.zeros(3, 37, dtype=torch.bool).scatter_(1, tokens, True)
    shaped = penalised(logits, seen, penalty)
    found = truncated(shaped / temperature, top_p, top_k, min_p).softmax(-1)
    assert (found - expected).abs().max() < 1e-5
    drawn, log_probs = sample(shaped, torch.full((3,), 0.37, dtype=torch.float64), temperature, top_p, top_k, min_p)
    assert (log_probs.exp() - expected.gather(1, drawn[:, None])[:, 0]).abs().max() < 1e-5


@pytest.mark.parametrize(("top_p", "top_k", "min_p"), [(1.0, 5, 0.0), (1.0, 0, 0.2), (0.8, 12, 0.05)])
def test_draws_follow_what_the_cuts_leave(top_p, top_k, min_p):
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(1)) * 2
    noise = torch.from_numpy(uniforms(np.arange(ROWS, dtype=np.uint64), 1)[:, 0])
    tokens, _ = sample(logits.expand(ROWS, -1), noise, 1.3, top_p, top_k, min_p)
    expected = processors(0, (), 1.3, top_p, top_k, min_p)(torch.zeros(1, 0, dtype=torch.int64), logits).softmax(-1)[0]
    assert 1 < int((expected > 0).sum()) < 30
    assert abs(chi_square(np.bincount(tokens.numpy(), minlength=30), expected.double().numpy())) < 5


def test_top_k_keeps_tokens_as_likely_as_the_last_of_them():
    found = truncated(torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]]), 1.0, 2, 0.0)
    assert torch.isfinite(found).tolist() == [[False, True, True, True, False]]


@settings(max_examples=examples(50))
@given(
    seed=st.integers(0, 1000),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    top_k=st.integers(1, 40),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
)
def test_the_support_is_what_the_cuts_leave(seed, top_p, top_k, min_p):
    logits = torch.randn(5, 37, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    kept = (
        processors(0, (), 1.0, top_p, top_k, min_p)(torch.zeros(5, 0, dtype=torch.int64), logits.clone()) > -torch.inf
    )
    support = support_of(truncated(logits, top_p, top_k, min_p))
    assert support.sizes.tolist() == kept.sum(1).tolist()
    assert support.tokens.tolist() == kept.nonzero()[:, 1].tolist()
    drawn, _ = sample(logits, torch.rand(5, dtype=torch.float64), 1.0, top_p, top_k, min_p)
    assert support.contains(drawn.numpy().astype(np.int32)).all()
