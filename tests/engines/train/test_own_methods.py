"""A loss and an advantage of the user: the example of docs/algorithms.md, its digest, and what is refused."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.preflight.run import check_functions
from tests.algorithms.ragged import Step, algorithm, assert_parity
from tests.engines.train.support import (
    batch_of,
    make_engine,
    make_model_folder,
    make_spec,
    prepare,
    random_task,
    weights_of,
)
from tests.spec.trees import ROOT, tree
from yatt_core.algorithms import own
from yatt_core.algorithms.advantages.base import RewardBatch
from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.errors import ConfigurationError
from yatt_core.experience.prepared import read_prepared
from yatt_core.problems import Problems
from yatt_core.spec import override_spec, parse_spec
from yatt_core.spec.reading.code_digests import with_digests
from yatt_core.spec.run import RunSpec

LOSS = {"kind": "custom", "function": "my_methods:squared_loss", "options": {"strength": 2.0}}
ADVANTAGE = {"kind": "custom", "function": "my_methods:ranks"}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The documented module, importable."""
    page = (ROOT / "docs" / "algorithms.md").read_text()
    path = tmp_path / "code" / "my_methods.py"
    path.parent.mkdir()
    path.write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(path.parent)
    yield path
    sys.modules.pop("my_methods", None)
    own._found.cache_clear()


def spec_of(**settings: Any) -> RunSpec:
    return with_digests(make_spec(algorithm={"loss": LOSS, "advantage": ADVANTAGE, **settings}), lambda _: "here")


def test_the_documented_example_trains(module: Path, tmp_path: Path) -> None:
    spec = spec_of(epochs=2)
    assert spec.is_exact and spec.algorithm.loss.sha256 == hashlib.sha256(module.read_bytes()).hexdigest()  # type: ignore[union-attr]
    engine = make_engine(spec, tmp_path, make_model_folder(tmp_path / "model"))
    before = weights_of(engine)
    task = random_task(tmp_path, 1)
    batch = batch_of(tmp_path, task)
    receipt = prepare(engine, task)
    columns = read_prepared(tmp_path, receipt.folder, receipt.files)
    rewards = batch.rewards.reshape(6, 4)
    wins = (rewards[:, :, None] > rewards[:, None, :]).sum(2) - (rewards[:, :, None] < rewards[:, None, :]).sum(2)
    np.testing.assert_allclose(columns.advantages, wins.ravel() / 3)
    update = engine.learn(task, receipt)
    assert update.metrics["clip_fraction"] > 0.0 < update.metrics["grad_norm"]
    assert any((weights_of(engine)[name] != array).any() for name, array in before.items())


def test_the_documented_loss_has_its_formulas_gradient(module: Path) -> None:
    noise = np.random.default_rng(0)
    old = [noise.uniform(-2, -1, length) for length in (3, 1, 4)]
    new = [row + noise.normal(0, 0.2, len(row)) for row in old]
    advantages = [noise.normal(0, 1, len(row)) for row in old]
    step = Step(new, old, old, old, np.array([0.1, 0.2, 0.3]), advantages, [np.array([2, 0]), np.array([1])])

    def losses(values: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        ratio = np.exp(values - old[i])
        return -ratio * advantages[i] + (ratio - 1) ** 2

    assert_parity(algorithm(loss=LOSS), step, losses)


def test_an_exact_run_refuses_another_source(module: Path, tmp_path: Path) -> None:
    spec = spec_of()
    model = make_model_folder(tmp_path / "model")
    module.write_text(module.read_text() + "\n# changed\n")
    with pytest.raises(ConfigurationError, match=r"algorithm\.loss\.function: .*my_methods:squared_loss.*sha256"):
        make_engine(spec, tmp_path, model)
    make_engine(spec.model_copy(update={"exact": False}), tmp_path, model)
    assert override_spec(spec, ["seed=9"], "run").algorithm == spec.algorithm
    renewed = override_spec(spec, ["algorithm.loss.function=my_methods:squared_loss"], "run").algorithm.loss
    assert renewed.sha256 == hashlib.sha256(module.read_bytes()).hexdigest()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        ("my_method:squared_loss", r"algorithm\.loss\.function: 'my_method:squared_loss': .*my_method"),
        ("squared_loss", r"algorithm\.loss\.function: 'squared_loss' is not an entry point of 'yatt\.losses'"),
    ],
)
def test_a_function_that_does_not_exist_is_refused(module: Path, function: str, facts: str) -> None:
    made = parse_spec(tree(), "test")
    with pytest.raises(ConfigurationError, match=facts):
        override_spec(made, [f"algorithm.loss={{kind: custom, function: '{function}'}}"], "test")


@pytest.mark.parametrize(
    ("loss", "facts"),
    [
        (
            "TokenLosses(tokens.ratio.detach(), tokens.ratio > 2)",
            "my_methods:squared_loss returned losses without gradients",
        ),
        (
            "TokenLosses(tokens.ratio.detach().numpy(), tokens.ratio > 2)",
            r"returned TokenLosses with shapes \['ndarray', torch.Size\(\[1\]\)\]; expected .* two tensors of 1 tokens",
        ),
    ],
)
def test_a_loss_from_which_nothing_can_be_learned_is_refused(module: Path, loss: str, facts: str) -> None:
    module.write_text(
        f"from yatt_core.algorithms.tokens import TokenLosses\ndef squared_loss(tokens, options):\n    return {loss}\n"
    )
    old = [np.array([-1.0])]
    step = Step(old, old, old, old, np.ones(1), [np.ones(1)], [np.array([0])])
    with pytest.raises(ConfigurationError, match=rf"algorithm\.loss\.function: .*{facts}"):
        assert_parity(algorithm(loss=LOSS), step, lambda new, *_: new)


def test_advantages_that_are_not_finite_are_refused(module: Path) -> None:
    module.write_text("def ranks(batch, options):\n    return batch.rewards / [1.0, float('nan')]\n")
    batch = RewardBatch(np.ones(2), np.array([2]), np.ones(2, np.int64), 1e-4)
    with pytest.raises(
        ConfigurationError, match=r"algorithm\.advantage\.function: .*ranks returned nan at index 1 of 2 resp"
    ):
        CustomAdvantage(function=ADVANTAGE["function"]).advantages(batch)


@pytest.mark.parametrize("key", ["loss", "advantage"])
def test_a_function_that_its_module_lacks_is_refused_before_the_start(module: Path, key: str) -> None:
    spec = spec_of(**{key: {"kind": "custom", "function": "my_methods:square_loss"}})
    problems = Problems()
    check_functions(spec, problems)
    with pytest.raises(
        ConfigurationError,
        match=rf"algorithm\.{key}\.function: .*my_methods has no 'square_loss'; did you mean 'squared_loss'\?",
    ):
        problems.raise_as_configuration()


@pytest.mark.parametrize("responses", [False, True])
def test_the_documented_example_is_tried_before_the_start(module: Path, responses: bool) -> None:
    text = module.read_text()
    if responses:
        module.write_text(text.replace("-tokens.ratio * ", "-tokens.whole.mean(tokens.ratio) * "))
    problems = Problems()
    check_functions(spec_of(loss={**LOSS, "responses": responses}), problems)
    problems.raise_as_configuration()


@pytest.mark.parametrize(
    ("key", "function", "facts"),
    [
        ("loss", "def squared_loss(tokens, options):\n    return tokens.ratio * options['strong']", "KeyError.*strong"),
        ("loss", "def squared_loss(tokens):\n    return tokens.ratio", r"TypeError.*positional"),
        ("loss", "def squared_loss(tokens, options):\n    return tokens.ratio", "returned Tensor with shapes"),
        ("advantage", "def ranks(batch, options):\n    return batch.rewards[1:]", "expected 8 responses"),
        ("advantage", "def ranks(batch, options):\n    return batch.rewards * float('inf')", "returned inf at index 0"),
    ],
)
def test_a_function_that_fails_its_trial_is_refused_before_the_start(
    module: Path, key: str, function: str, facts: str
) -> None:
    module.write_text(f"{module.read_text()}\n\n{function}\n")
    problems = Problems()
    check_functions(spec_of(), problems)
    with pytest.raises(ConfigurationError, match=rf"algorithm\.{key}\.function: .*{facts}"):
        problems.raise_as_configuration()


def test_what_a_function_returns_and_raises_is_checked(module: Path, tmp_path: Path) -> None:
    module.write_text(
        "def squared_loss(tokens, options):\n    return None\n"
        "def ranks(batch, options):\n    raise ValueError('no ranks today')\n"
    )
    old = [np.array([-1.0])]
    step = Step(old, old, old, old, np.ones(1), [np.ones(1)], [np.array([0])])
    with pytest.raises(ConfigurationError, match=r"algorithm\.loss\.function: .*NoneType.*1 tokens"):
        assert_parity(algorithm(loss=LOSS), step, lambda new, *_: new)
    engine = make_engine(spec_of(), tmp_path, make_model_folder(tmp_path / "model"))
    with pytest.raises(
        ConfigurationError, match=r"algorithm\.advantage\.function: .*my_methods\.py:4: .*no ranks today"
    ):
        prepare(engine, random_task(tmp_path, 1))
