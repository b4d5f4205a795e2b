"""Trains the runs that `benchmarks.algorithms` compares, each once: what a folder holds is not trained again.

Consumes a folder, a method and a seed. Produces the run's figures. All runs of a seed begin with the same weights, after
supervised fine-tuning, and draw the same prompts; self-distillation begins with weights that were fine-tuned further, to use an
answer that is shown.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.algorithms.methods import BASE_CHANGES, MATCHED, METHODS, SHOWN, Method, Teachers
from benchmarks.common import progress
from benchmarks.in_process import LocalRun, train, trained_start
from yatt_core.datasets.sources import collect_prompts
from yatt_core.durable import write_file
from yatt_core.inputs.identity import identity
from yatt_core.inputs.manifest import INPUTS
from yatt_core.spec import RunSpec, load_spec

SPEC = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
SHOWN_PROMPTS = 2000
SHOWN_SFT = {"demonstrations": 1200, "batch_size": 64, "max_steps": 300, "stop_accuracy": 0.9}
"""All demonstrations and the probe show the answer."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The runs in a folder.

    iterations: of each run; a late teacher, and a run with one optimizer step an iteration, have twice as many.
    changes: overrides of the spec of all runs.
    """

    folder: Path
    iterations: int
    changes: tuple[str, ...] = ()

    def figures(self, name: str, seed: int) -> dict[str, Any]:
        """Returns the figures of a method's run, which is trained unless it is there.

        Raises `ValueError` if the run that is there has other iterations or changes.
        """
        path = self.folder / f"{name}-{seed}.json"
        method = METHODS[name]
        if not path.exists():
            own = method.teaching == "self"
            start = self._shown_start(seed) if own else self._start(seed)
            teachers = self._teachers(seed) if method.teaching is not None and not own else None
            spec = self._spec(seed, start, method.changes(self.iterations, teachers))
            write_file(path, json.dumps(self._trained(spec, method)).encode())
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (found["iterations"], found["changes"]) != (self.iterations, list(self.changes)):
            raise ValueError(f"{path}: a run of {found['iterations']} iterations with the changes {found['changes']}")
        return found

    def _trained(self, spec: RunSpec, method: Method, to: Path | None = None) -> dict[str, Any]:
        started = time.perf_counter()
        worked = time.process_time()
        run = self._run(spec, method.lag or 0, to)
        return {
            "accuracy_warmup": run.accuracy_sft,
            "accuracy": run.accuracy,
            "sampled": run.sampled,
            "seconds": time.perf_counter() - started,
            "processor_seconds": time.process_time() - worked,
            "iterations": self.iterations,
            "changes": list(self.changes),
        }

    def _run(self, spec: RunSpec, lag: int = 0, to: Path | None = None) -> LocalRun:
        """Trains a run with the inputs of an earlier one, if these would be the same."""
        inputs = self.folder / INPUTS / identity(spec)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".run-") as place:
            if inputs.exists():
                shutil.copytree(inputs, Path(place) / INPUTS)
            run = train(spec, Path(place), lag, to)
            if not inputs.exists():
                inputs.parent.mkdir(exist_ok=True)
                (Path(place) / INPUTS).rename(inputs)
        return run

    def _spec(self, seed: int, start: Path, changes: list[str]) -> RunSpec:
        model = json.dumps({"kind": "folder", "path": str(start)})
        return load_spec(SPEC, [*BASE_CHANGES, *changes, *self.changes, f"seed={seed}", f"model={model}", "sft=null"])

    def _start(self, seed: int) -> Path:
        """Returns the folder of the model with which the runs of a seed begin."""
        return self._fine_tuned(f"start-{seed}", load_spec(SPEC, [*BASE_CHANGES, *self.changes, f"seed={seed}"]))

    def _shown_start(self, seed: int) -> Path:
        """Returns the folder of a model that has been fine-tuned on privileged prompts after that."""
        plain = load_spec(SPEC, [*BASE_CHANGES, *self.changes, f"seed={seed}"])
        rows = self.folder / f"shown-{seed}.jsonl"
        prompts = itertools.islice(collect_prompts(plain.data, seed).train[0], SHOWN_PROMPTS)
        shown = [
            {"prompt": SHOWN.format(prompt=prompt.text, answer=prompt.answer), "answer": prompt.answer}
            for prompt in prompts
        ]
        write_file(rows, "".join(json.dumps(row) + "\n" for row in shown).encode())
        changes = [
            f"model={json.dumps({'kind': 'folder', 'path': str(self._start(seed))})}",
            f"data.sources={json.dumps([{'kind': 'jsonl', 'path': str(rows)}])}",
            "data.max_prompt_tokens=32",
            'rewards.parts=[{"name": "exact", "function": "exact_match"}]',
            f"sft={json.dumps(SHOWN_SFT)}",
        ]
        spec = load_spec(SPEC, [*BASE_CHANGES, *self.changes, *changes, f"seed={seed}"])
        return self._fine_tuned(f"shown-{seed}", spec)

    def _fine_tuned(self, name: str, spec: RunSpec) -> Path:
        folder = self.folder / name
        if not folder.exists():
            progress(f"{name}: supervised fine-tuning")
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".sft-") as place:
                trained_start(spec, Path(place), folder)
        return folder

    def _teachers(self, seed: int) -> Teachers:
        """Returns the models of the base's run, and of one that is twice as long."""
        found = []
        for times in (1, 2):
            folder = self.folder / f"teacher-{times}-{seed}"
            iterations = times * self.iterations
            if not folder.exists():
                progress(f"teacher of seed {seed}: {iterations} iterations")
                self._run(self._spec(seed, self._start(seed), METHODS[MATCHED].changes(iterations, None)), to=folder)
            found.append(folder)
        return Teachers(*found)
