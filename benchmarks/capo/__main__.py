"""Does a policy learn more from rewards of tokens than from rewards of responses, and does a small judge suffice for them?

Consumes configs/critique.yaml. Trains it for each seed with the outcome alone (GRPO), with critiques by the rule (CAPO), and
with those of a small judge, which it trains first on responses labelled by the rule. All runs of a seed begin with the same
weights, after SFT, and draw the same prompts. They use the product's collector, engines, judge and trainer in one process.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.capo.critic import train_critic
from benchmarks.capo.verdicts import interval_low, verdicts_of
from benchmarks.common import Report, argument_parser, load_average, print_report, progress
from benchmarks.in_process import train, trained_start
from yatt_core.datasets.sources import collect_prompts
from yatt_core.spec import load_spec
from yatt_core.spec.rewards.judges import GenerativePart

SPEC = Path(__file__).parents[2] / "configs" / "critique.yaml"
GRPO, ORACLE, CRITIC = KINDS = ("grpo", "capo_oracle", "capo_critic")
ONE_RANK = "trainer.engine.ranks=1"
CRITIQUES = 4
PROMPTS = 5000
"""Critiques of a response, and number of prompts from which the judge's training draws."""


def changes_of(kind: str, judge: Path) -> list[str]:
    """Returns the overrides of a kind of run. judge: the folder of the judge's model."""
    right = {"name": "right", "function": "reasoning_gym"}
    critic = {
        "kind": "generative",
        "name": "wrong_lines",
        "weight": 0,
        "model": {"kind": "folder", "path": str(judge)},
        "template": "{prompt}\n{steps}\n",
        "parse": {"kind": "wrong_steps"},
        "judgements": CRITIQUES,
        "max_new_tokens": 64,
    }
    if kind == ORACLE:
        return []
    if kind == CRITIC:
        return [f"rewards.parts={json.dumps([right, critic])}"]
    return [f"rewards.parts={json.dumps([right])}", "rewards.critique=null"]


def judge_folder(work: Path) -> Path:
    """Returns the folder of the judge's model, which is trained unless it is there."""
    folder = work / "judge"
    if not folder.exists():
        progress("training the judge")
        spec = load_spec(SPEC, changes_of(CRITIC, folder))
        (part,) = (part for part in spec.rewards.judges if isinstance(part, GenerativePart))
        prompts = list(itertools.islice(collect_prompts(spec.data, spec.seed).train[0], PROMPTS))
        train_critic(
            part=part,
            prompts=prompts,
            folder=folder,
            seed=spec.seed,
            report=lambda step, loss: progress(f"step {step}: loss {loss:.4f}"),
        )
    return folder


def start_folder(work: Path, seed: int, changes: Sequence[str]) -> Path:
    """Returns the model's folder with which all runs of a seed begin, which is fine-tuned unless it is there."""
    folder = work / f"start-{seed}"
    if not folder.exists():
        progress(f"seed {seed}: supervised fine-tuning")
        with tempfile.TemporaryDirectory(dir=work) as place:
            trained_start(load_spec(SPEC, [ONE_RANK, *changes, f"seed={seed}"]), Path(place), folder)
    return folder


def run(work: Path, kind: str, seed: int, changes: Sequence[str]) -> dict[str, Any]:
    """Trains a run unless it is done; returns its figures, with those of its judge."""
    path = work / f"{kind}-{seed}.json"
    if not path.exists():
        start = start_folder(work, seed, changes)
        judge = judge_folder(work) if kind == CRITIC else work
        model = json.dumps({"kind": "folder", "path": str(start)})
        spec = load_spec(
            SPEC, [ONE_RANK, *changes_of(kind, judge), *changes, f"seed={seed}", f"model={model}", "sft=null"]
        )
        with tempfile.TemporaryDirectory(dir=work) as place:
            done = train(spec, Path(place))
            figures: dict[str, Any] = asdict(done)
            if spec.rewards.judges and spec.rewards.critique is not None:
                figures["judge"] = asdict(verdicts_of(Path(place), spec.rewards.critique.vote))
        path.write_text(json.dumps(figures))
    figures = json.loads(path.read_text())
    progress(f"{kind}, seed {seed}: {figures['accuracy_sft']:.3f} after SFT, {figures['accuracy']:.3f} at the end")
    return figures


def report_of(runs: Mapping[str, Sequence[dict[str, Any]]], seeds: Sequence[int], load: Sequence[float]) -> Report:
    """Returns the report on runs by kind, each in the order of the seeds."""
    accuracies = {kind: [figures["accuracy"] for figures in each] for kind, each in runs.items()}
    gains = [oracle - plain for oracle, plain in zip(accuracies[ORACLE], accuracies[GRPO], strict=True)]
    judged = [figures["judge"] for figures in runs[CRITIC]]
    hits, false_alarms, misses = (sum(each[key] for each in judged) for key in ("hits", "false_alarms", "misses"))
    return Report(
        name="capo",
        figures={
            **{f"accuracy_{kind}": mean(values) for kind, values in accuracies.items()},
            "critic_precision": hits / max(1, hits + false_alarms),
            "critic_recall": hits / max(1, hits + misses),
            "gain_ci_low": interval_low(gains),
        },
        seeds=seeds,
        load=load,
        baselines={"accuracy_sft": mean(figures["accuracy_sft"] for figures in runs[GRPO])},
        details={"runs": runs, "gains": gains},
    )


def main() -> None:
    """Runs the benchmark."""
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="two or more (default: 0 to 4)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="train these only, without a report")
    parser.add_argument("--work", type=Path, help="folder for finished runs: an interrupted benchmark continues there")
    arguments = parser.parse_args()
    load = [load_average()]
    with tempfile.TemporaryDirectory(prefix="yatt") as temporary:
        work = arguments.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        runs = {kind: list[dict[str, Any]]() for kind in KINDS}
        for kinds in ((GRPO, ORACLE), (CRITIC,)):
            for seed, kind in itertools.product(arguments.seeds, kinds):
                if kind in arguments.kinds:
                    runs[kind].append(run(work.resolve(), kind, seed, arguments.set))
    if set(arguments.kinds) == set(KINDS):
        print_report(report_of(runs, arguments.seeds, [*load, load_average()]), arguments.json)


if __name__ == "__main__":
    main()
