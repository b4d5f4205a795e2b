"""A pipeline whose runs are simulated, and whose process can be killed before and after everything that has an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from db.core.holder import Holder, this_process
from db.ledger import Ledger
from db.write.pipelines import JobRow, Pipelines
from flows.members.driving import Drives, Goals
from flows.pipelines import runner
from flows.pipelines.record import start_pipeline
from flows.pipelines.spec import load_pipeline
from flows.pipelines.tools import Tools
from flows.run.home import Home
from ops.integrations.promotion import promote
from tests.flows.soups.support import RUN, Killed, drive_run
from yatt_core.errors import ConfigurationError
from yatt_core.protocols.engines import Tensors
from yatt_core.spec import RunSpec
from yatt_core.spec.reading.documents import yaml_text

JOBS: dict[str, Any] = {
    "sft": {"kind": "train", "spec": "run.yaml", "set": ["name=sft", "iterations=2"]},
    "rlhf": {"kind": "train", "spec": "run.yaml", "set": ["iterations=3", "tracking.tags.from=${jobs.sft.model}"]},
    "evaluation": {"kind": "evaluate", "of": "rlhf"},
    "gate": {"kind": "gate", "of": "evaluation", "at_least": {"accuracy": 0.5}, "approval": {"names": ["ann"]}},
    "champion": {"kind": "promote", "of": "rlhf", "needs": ["gate"]},
}
GUARDED = ("begin", "note", "end", "release")


def dying_process(text: str) -> Holder:
    """Returns a holder that counts as gone, as that of a killed process does."""
    return replace(this_process(text), process_start=1)


@dataclass
class Plant:
    """A home and a pipeline's file.

    killed_at: number of the moment, before or after an effect, in which the process is killed.
    did: the work that was done, in order.
    too_large: names of runs that could never have their devices.
    """

    home: Home
    file: Path
    inputs: Path
    accuracy: float = 0.75
    killed_at: int = -1
    moment: int = 0
    did: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    too_large: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Path, inputs: Path, jobs: Mapping[str, Any] | None = None) -> Plant:
        folder.mkdir()
        (folder / "run.yaml").write_text(yaml_text(RUN))
        plant = cls(Home(folder / "runs"), folder / "pipeline.yaml", inputs)
        plant.write(jobs or JOBS)
        return plant

    def write(self, jobs: Mapping[str, Any], **others: Any) -> None:
        self.file.write_text(yaml_text({"name": "line", "jobs": dict(jobs)} | others))

    def run(self) -> tuple[str, str]:
        """Runs the pipeline's file; returns the pipeline's id and the state in which it ends."""
        row = start_pipeline(self.home, load_pipeline(self.file), self.file.parent, "ann")
        with Ledger.open(self.home.ledger) as ledger, self._guarded():
            return row.id, runner.PipelineRunner(self.home, ledger, row.id, self.tools()).run()

    def jobs(self, pipeline: str) -> dict[str, JobRow]:
        with Ledger.open(self.home.ledger) as ledger:
            return ledger.pipelines.jobs(pipeline)

    def tools(self) -> Tools:
        return Tools(
            drives=self._drives,
            require_devices=self._require_devices,
            evaluate=self._evaluate,
            export=self._export,
            promote=self._promote,
            open_meter=lambda *_: self,
            tell=self._tell,
            by="ann",
        )

    def measure(self, weights: Tensors) -> Mapping[str, float]:
        """Returns the square roots of the objectives' shares in the weights, as a soup's meter."""
        self._pass()
        shares = np.maximum(weights["mix"], 0.0)
        return {"exact": 0.0, "brief": float(np.sqrt(shares[0])), "long": float(np.sqrt(shares[1]))}

    def _tell(self, text: str) -> None:
        self.said.append(text)

    def _drives(self) -> Drives:
        return self._drive

    def _drive(self, goals: Goals) -> None:
        for run, until in goals().items():
            self._at(f"drive {run}", lambda run=run, until=until: drive_run(self, run, until))  # type: ignore[misc]

    def _require_devices(self, spec: RunSpec) -> None:
        if spec.name in self.too_large:
            raise ConfigurationError(f"the runs need {spec.devices} devices each")

    def _evaluate(self, run: str, iteration: int, suite: Path | None) -> dict[str, Any]:
        self._at(f"evaluate {run}", lambda: None)
        return {"accuracy": self.accuracy, "tasks": 5}

    def _export(self, run: str, iteration: int, to: Path, dtype: str | None) -> None:
        def write() -> None:
            to.mkdir()
            (to / "model").write_text(f"{run} {iteration} {dtype}")

        self._at(f"export {run}", write)

    def _promote(self, run: str, iteration: int, alias: str, why: str) -> int | None:
        numbers: list[int | None] = []
        self._at(
            f"promote {run}",
            lambda: numbers.append(promote(self.home, run, alias, iteration, by="ann", why=why).approval),
        )
        return numbers[0]

    def _at(self, name: str, effect: Callable[[], Any]) -> Any:
        """Has an effect, unless the process is killed before it, and perhaps is killed after it."""
        self._pass()
        result = effect()
        self.did.append(name)
        self._pass()
        return result

    def _pass(self) -> None:
        self.moment += 1
        if self.moment == self.killed_at:
            raise Killed

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        plant = self

        def guarded(name: str) -> Callable[..., Any]:
            own = getattr(Pipelines, name)

            def call(pipelines: Pipelines, *arguments: Any, **named: Any) -> Any:
                plant._pass()
                result = own(pipelines, *arguments, **named)
                plant._pass()
                return result

            return call

        with (
            mock.patch.multiple(Pipelines, **{name: guarded(name) for name in GUARDED}),
            mock.patch.object(runner, "this_process", dying_process),
        ):
            yield
