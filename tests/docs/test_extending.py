"""The examples of docs/extending.md: written to files, named in one spec, looked up as before a start, and called."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.run.callbacks import Commit, End, find_callbacks
from ops.preflight.run import check_before_start
from tests.algorithms.ragged import Step, algorithm, assert_parity
from tests.placement.test_records import run_campaign, small
from tests.services import ROOT
from yatt_core.algorithms import own
from yatt_core.algorithms.advantages.custom import CustomAdvantage
from yatt_core.datasets.sources import collect_prompts
from yatt_core.placement.policies.registry import find_policy
from yatt_core.rewards.process import reward_process
from yatt_core.spec import RunSpec, spec_of_tree
from yatt_core.spec.reading.documents import parse_yaml
from yatt_core.spec.sections.placement import PlacementSpec
from yatt_core.tools.registry import find_tool

PAGE = (ROOT / "docs" / "extending.md").read_text()
MODULES = {
    re.findall(r"\w+", code)[0]: code for code in re.findall(r'```python\n("""\w+\.py""".*?)```', PAGE, re.DOTALL)
}
SECTIONS: dict[str, Any] = {
    key: value
    for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for key, value in parse_yaml(text, "docs/extending.md").items()
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a folder on the path that contains the page's modules."""
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    reward_process().close()
    yield tmp_path
    reward_process().close()
    own._found.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)


def spec_of(*sections: str, **others: Any) -> RunSpec:
    return spec_of_tree(
        {"name": "extended", **{key: SECTIONS[key] for key in sections}, **others}, "docs/extending.md", Path()
    )


def test_the_page_has_an_example_of_each() -> None:
    assert set(MODULES) == {"my_rewards", "my_tools", "my_methods", "my_sources", "my_policies", "my_callbacks"}
    assert set(SECTIONS) == {"rewards", "rollout", "algorithm", "data", "placement", "callbacks"}
    groups = {
        "yatt.rewards",
        "yatt.tools",
        "yatt.losses",
        "yatt.advantages",
        "yatt.sources",
        "yatt.placement",
        "yatt.callbacks",
    }
    assert groups <= set(re.findall(r"`(yatt\.\w+)`", PAGE))


def test_a_spec_that_names_them_all_can_start(folder: Path) -> None:
    """The checks before a start import everything, read the source, and call the reward."""
    data = {**SECTIONS["data"], "held_out": 5, "probe": 5}
    spec = spec_of("algorithm", "rollout", "callbacks", data=data, rewards={**SECTIONS["rewards"], "correct_at": 0.5})
    assert spec.algorithm.loss.sha256 and spec.algorithm.advantage.sha256  # type: ignore[union-attr]
    (source,) = spec.data.sources
    assert source.kind == "function" and source.sha256
    checked = check_before_start(folder / "runs", spec)
    assert checked.trials


def test_the_source_yields_prompts(folder: Path) -> None:
    found = collect_prompts(spec_of("data", "rewards").data.model_copy(update={"held_out": 5, "probe": 0}), 0)
    assert found.held_out[0].text == "12+12=" and found.held_out[0].answer == "24"
    assert next(iter(found.train[0])).text == "0+0=" and len(list(found.train[0])) == 144


def test_the_tool_answers(folder: Path) -> None:
    (tool,) = SECTIONS["rollout"]["tools"]["functions"]
    assert find_tool(tool["name"], tool["function"], tool["options"])(query="fox", **tool["options"]) == [
        "Fantastic Mr Fox"
    ]


def test_the_loss_and_the_advantage_are_their_formulas(folder: Path) -> None:
    noise = np.random.default_rng(0)
    old = [noise.uniform(-2, -1, length) for length in (3, 1)]
    new = [row + noise.normal(0, 0.2, len(row)) for row in old]
    advantages = [noise.normal(0, 1, len(row)) for row in old]
    step = Step(new, old, old, old, np.array([0.1, 0.2]), advantages, [np.array([1, 0])])

    def losses(values: np.ndarray, _: np.ndarray, i: int) -> np.ndarray:
        return -np.exp(values - old[i]) * advantages[i]

    assert_parity(algorithm(loss=SECTIONS["algorithm"]["loss"]), step, losses)
    batch = SimpleNamespace(rewards=np.array([1.0, 3.0, 5.0]), sizes=np.array([2, 1]))
    found = own.call(CustomAdvantage(**SECTIONS["algorithm"]["advantage"]), own.ADVANTAGES, batch, {})
    assert found.tolist() == [-1.0, 1.0, 0.0]


def test_the_policy_plans(folder: Path) -> None:
    placement = PlacementSpec(**SECTIONS["placement"])
    campaign = run_campaign(small(), find_policy(placement, constants_known=True))
    assert {plan.roles for plan in campaign.plans} == {"RRRJ"}


def test_the_callback_writes(folder: Path) -> None:
    ((_, callback),) = find_callbacks(spec_of("data", "rewards", "callbacks").callbacks)
    callback.on_commit(Commit("extended-1", 3, 10, {"reward/mean": 0.5}, 1.0))
    callback.on_end(End("extended-1", "completed", "target reached"))
    assert (folder / "rewards.txt").read_text() == "extended-1 3 0.5\nextended-1 completed\n"
