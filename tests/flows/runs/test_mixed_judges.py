"""Rewards from a rule, a reward model on the devices and an endpoint: scores are recorded; no replay asks again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import multimode
from typing import Any

import pandas as pd
import pytest

from examples.judge.folder import make_judge
from examples.judge.recipe import TRAINING
from tests.flows.tools import Driver
from tests.judges.parts import ADAPTER, verdicts
from tests.judges.server import Reply, Server, completion, serving
from tests.judges.test_reward_model import make_folder
from tests.services import ROOT
from yatt_core.judges.registry import build_judge
from yatt_core.judges.seeds import judgement_seeds
from yatt_core.protocols.judges import JudgeItem
from yatt_core.spec import load_spec

ITERATIONS = 2
PROMPTS = 8
SAMPLES = 4
JUDGEMENTS = 2
RULE = 0.25
LIKES = 0.5
OTHERS = 2.0
"""Weights of the rule, the reward model and the endpoint."""
TEMPLATE = "Is it right? {prompt} {response}"


@dataclass
class Mixture:
    """The endpoint, and the folder of the reward model."""

    server: Server
    model: Path

    @property
    def parts(self) -> list[dict[str, Any]]:
        model = {"kind": "folder", "path": str(self.model)}
        likes = {"name": "likes", "kind": "reward_model", "model": model, "template": "{response}", "score": "sigmoid"}
        others = {
            "name": "others", "kind": "endpoint", "url": self.server.url, "model": "m", "template": TEMPLATE,
            "judgements": JUDGEMENTS, "seeded": True, "backoff_seconds": 0.01,
        }  # fmt: skip
        rule = {"name": "rule", "function": "virtual_score", "weight": RULE}
        return [rule, {**likes, "weight": LIKES}, {**others, "weight": OTHERS}]

    def create(self, driver: Driver) -> str:
        parts = f"rewards.parts={json.dumps(self.parts)}"
        changes = ("placement.mode=dynamic", "rollout.max_new_tokens=12", "evaluation.every=0", "checkpoints.every=100")
        return driver.create("virtual.yaml", parts, *changes, f"iterations={ITERATIONS}")


def opinion(text: str, seed: int) -> str:
    """Returns the endpoint's answer, the same for the same question."""
    return "yes" if (len(text) + seed) % 2 else "no"


@pytest.fixture
def mixture(tmp_path: Path) -> Iterator[Mixture]:
    def answer(body: dict[str, Any], number: int) -> Reply:
        # Some requests must be repeated.
        text = opinion(body["messages"][0]["content"], body["seed"])
        return Reply(503) if number in (3, 70) else Reply(body=completion(text))

    with serving(answer) as server:
        yield Mixture(server, make_folder(tmp_path / "model"))


def check_scores(driver: Driver, run: str, mixture: Mixture) -> None:
    """Checks that each recorded score is what its rule, model or endpoint gives, and each reward their weighted sum."""
    samples = experience_of(driver, run, "samples")
    told = experience_of(driver, run, "judgements")
    assert len(samples) == ITERATIONS * PROMPTS * SAMPLES
    items = [JudgeItem(n, row.prompt, row.response, None, (0,)) for n, row in enumerate(samples.itertuples())]
    liked = verdicts(build_judge(ADAPTER.validate_python(mixture.parts[1]), str(mixture.model)), *items)
    by_part = {name: rows.set_index(["prompt_ordinal", "sample"]) for name, rows in told.groupby("part")}
    assert {name: len(rows) for name, rows in by_part.items()} == {"likes": len(samples), "others": len(samples)}
    for number, row in enumerate(samples.to_dict("records")):
        place = (row["prompt_ordinal"], row["sample"])
        seeds = judgement_seeds("others", JUDGEMENTS, 0, 0, 1 + place[0] // PROMPTS, *place)
        asked = TEMPLATE.format(prompt=row["prompt"], response=row["response"])
        said = [opinion(asked, seed % 2**31) for seed in seeds]
        assert [one["answer"] for one in by_part["others"].loc[place, "judgements"]] == said
        assert row["reward/others"] == said.count("yes") / JUDGEMENTS
        (judgement,) = by_part["likes"].loc[place, "judgements"]
        assert row["reward/likes"] == judgement["score"] == liked[number].judgements[0].score
        total = RULE * row["reward/rule"] + LIKES * row["reward/likes"] + OTHERS * row["reward/others"]
        assert row["reward"] == pytest.approx(total)
    assert samples["reward/likes"].nunique() > 2 and samples["reward/others"].nunique() == 3


def check_metrics(driver: Driver, run: str) -> None:
    """Checks the undisturbed first iteration. The endpoint counts 3 tokens per judgement, the reward model none."""
    samples = experience_of(driver, run, "samples")
    told = experience_of(driver, run, "judgements")
    first = samples[samples["prompt_ordinal"] < PROMPTS]
    read = sum(
        one["prompt_tokens"]
        for row in told[told["prompt_ordinal"] < PROMPTS].to_dict("records")
        for one in row["judgements"]
    )
    with driver.ledger() as ledger:
        histories = {key: dict(ledger.metrics.history(run, key)) for key in ledger.metrics.latest(run)}
    assert histories["judge/tokens"][1] == 3 * JUDGEMENTS * len(first)
    assert histories["judge/prompt_tokens"][1] == read > 11 * JUDGEMENTS * len(first)
    assert histories["judge/device_seconds"][1] > 0
    for part in ("rule", "likes", "others"):
        assert histories[f"reward/{part}"][1] == pytest.approx(first[f"reward/{part}"].mean())


def check_nothing_was_asked_twice(mixture: Mixture) -> None:
    """Checks that each judgement was requested once, with its own seed, except for two refused requests, made again."""
    seeds = [body["seed"] for body in mixture.server.bodies]
    assert len(set(seeds)) == ITERATIONS * PROMPTS * SAMPLES * JUDGEMENTS
    assert len(seeds) == len(set(seeds)) + 2


def experience_of(driver: Driver, run: str, kind: str) -> pd.DataFrame:
    files = (driver.home.run_folder(run) / "experience").glob(f"b000/i*/w*/{kind}.parquet")
    return pd.concat([pd.read_parquet(file) for file in sorted(files)], ignore_index=True)


@pytest.mark.verify
@pytest.mark.timeout(400)
def test_a_rule_a_reward_model_and_an_endpoint_reward_a_run_that_is_killed(driver: Driver, mixture: Mixture) -> None:
    run = mixture.create(driver)
    driver.drive_until_killed(run, "collect:2")
    driver.drive(run)
    check_scores(driver, run, mixture)
    check_metrics(driver, run)
    check_nothing_was_asked_twice(mixture)


@pytest.mark.verify
@pytest.mark.timeout(400)
def test_an_endpoint_is_not_asked_again_by_a_run_that_lost_all_its_actors(driver: Driver, mixture: Mixture) -> None:
    run = mixture.create(driver)
    driver.drive_until_killed(run, "learn:2")
    driver.end_actors(run)
    driver.drive(run)
    check_scores(driver, run, mixture)
    check_nothing_was_asked_twice(mixture)


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_the_config_with_the_example_judge_runs_end_to_end(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "judge"
    judge = f"rewards.parts.1.model.path={folder}"
    short_training = TRAINING.model_copy(update={"max_steps": 100})
    assert make_judge(load_spec(ROOT / "configs" / "genrm.yaml", [judge]), training=short_training).steps == 100
    run = driver.create("../../configs/genrm.yaml", "iterations=2", judge, "evaluation.every=0")
    driver.drive(run)
    samples = experience_of(driver, run, "samples")
    told = experience_of(driver, run, "judgements")
    assert len(told) == len(samples) and {len(judgements) for judgements in told["judgements"]} == {3}
    for row, judgements in zip(samples.to_dict("records"), told["judgements"], strict=True):
        read = [one["score"] for one in judgements if one["score"] is not None]
        assert isinstance(row["unscored"], str) == (not read), "pandas has nothing for a null"
        if read:
            assert row["reward"] == row["reward/judge"] == min(multimode(read)), "a vote of those that can be read"
    assert samples["reward/judge"].nunique() == 2 and (samples["reward/exact"] != samples["reward/judge"]).any()
    manifest = json.loads((driver.home.run_folder(run) / "inputs" / "manifest.json").read_text())
    assert manifest["judges"]["judge"]["path"] == str(folder)
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "completed"
        histories = {key: dict(ledger.metrics.history(run, key)) for key in ("judge/tokens", "judge/device_seconds")}
    assert all(set(history) == {1, 2} and min(history.values()) > 0 for history in histories.values())
