"""`yatt check` of a workload of one's own: what it did when it was tried, as lines or as one JSON object."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from flows.run.home import Home
from ops.presentation.output import message, write, write_json
from ops.presentation.words import duration, size
from ops.terminal.options import Output
from yatt_core.counting import many
from yatt_core.spec import RunSpec


def check_workload(home: Home, file: Path, spec: RunSpec, output: Output) -> None:
    """Checks a spec whose workload is one's own; raises as `check_before_start` and `try_workload` do."""
    from ops.preflight.exactness import Exactness
    from ops.preflight.needs import ResourceNeeds
    from ops.preflight.run import check_before_start
    from ops.preflight.workload_trial import try_workload

    sound = check_before_start(home.folder, spec, message)
    message(f"building the inputs of {spec.workload.title}, and trying it out")
    found = try_workload(home.folder, spec)
    exactness = Exactness.of(spec)
    warnings = [*sound.warnings, *found.unseen_metrics(spec)]
    if output is Output.JSON:
        needs = ResourceNeeds(parameters=0, checkpoint_bytes=found.state_bytes)
        tried = {"kind": spec.workload.title, **asdict(found)}
        write_json({"workload": tried, "needs": asdict(needs), "exact": asdict(exactness), "warnings": warnings})
        return
    for warning in warnings:
        message(f"warning: {warning}")
    vouched = "of YATT itself" if spec.workload.sha256 is None else f"sha256 {spec.workload.sha256}"
    write(f"workload: {spec.workload.title}, {vouched}")
    write(f"inputs: {many(found.files, 'file')}, {size(found.input_bytes)}; state: {size(found.state_bytes)}")
    if found.sampler_bytes:
        samplers = many(spec.engine_instances, "sampler")
        write(f"{samplers}, each with a model of its own, get {size(found.sampler_bytes)} of weights after each update")
    for name, column in found.columns.items():
        write(f"an iteration learns from {name}: {column}")
    if found.image_bytes:
        write(
            f"an iteration keeps images: {size(found.image_bytes)}, {size(found.image_bytes * spec.iterations)} in all"
        )
    figures = ", ".join(f"{name} {value:.4g}" for name, value in found.figures.items())
    write(f"it begins with {figures}" if figures else "it evaluates nothing")
    forecast = f"forecast: {duration(found.forecast_seconds)} on one rank for {many(spec.iterations, 'iteration')}"
    write(f"{forecast}; this trial took {duration(found.seconds)}")
    for line in exactness.lines:
        write(line)
    write(f"the spec is sound; to start a run: yatt train {file}")
