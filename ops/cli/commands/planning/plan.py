"""`yatt plan`: predicts memory and time of a spec on described devices, before any of them is rented.

Consumes a spec and a description of devices; loads no model and starts nothing. Writes tables or one JSON object to standard
output. A plan that does not fit is printed too, with the exit code of an invalid spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.cli.commands.planning.plan_tables import print_lines, print_memory, print_shortages
from ops.presentation.output import write, write_json, write_table
from ops.presentation.words import duration, large_number
from ops.terminal.fetching import fetched
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, OverridesOption, SpecArgument, examples
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError, ExitCode
from yatt_core.planning.assumptions import Assumptions, parse_spread

if TYPE_CHECKING:
    from yatt_core.planning.cluster import DescribedCluster
    from yatt_core.planning.memory.rollout import EngineMemory
    from yatt_core.planning.plan import RunPlan, Times
    from yatt_core.planning.time.fitted import FittedConstants
    from yatt_core.spec import RunSpec

app = typer.Typer()

ClusterOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICES", help="Such as 8xH200, '8xH200,16 nodes' or 16x8xH200. Default: this machine's devices."
    ),
]
CardsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="YAML file that describes further types of devices.")
]
MfuOption = Annotated[
    float,
    typer.Option(min=0.01, max=1.0, help="Model FLOPs utilization of training, as a fraction of the device's peak."),
]
CalibrateOption = Annotated[
    str | None, typer.Option(metavar="RUN", help="Calibrate times with what this run recorded.")
]


def _lengths_option(of: str) -> Any:
    return typer.Option(metavar="MEDIAN:SIGMA", help=f"Log-normal distribution of the lengths of {of}, in tokens.")


@app.command(
    epilog=examples(
        "yatt plan configs/plan-7b-grpo.yaml --cluster 8xH200",
        "yatt plan configs/plan-72b-grpo.yaml --cluster '8xH200,16 nodes' --response-tokens 3000:0.8",
        "yatt plan configs/quickstart.yaml --calibrate latest",
        "yatt plan my.yaml --cluster 16x8xH100 --set trainer.engine.tensor_model_parallel_size=4 -o json",
    )
)
def plan(
    spec: SpecArgument,
    cluster: ClusterOption = None,
    overrides: OverridesOption = None,
    cards: CardsOption = None,
    response_tokens: Annotated[str | None, _lengths_option("responses")] = None,
    prompt_tokens: Annotated[str | None, _lengths_option("prompts")] = None,
    judge_tokens: Annotated[str | None, _lengths_option("judgements")] = None,
    training_mfu: MfuOption = 0.35,
    calibrate: CalibrateOption = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Predict what a spec needs on given devices: placement, memory by role and stage, times, and the assumptions made.

    Nothing is loaded or started, and the devices need not be present. Also accepts specs of engines that cannot train yet.
    """
    from yatt_core.planning.cluster import local_cluster, parse_cluster, read_cards
    from yatt_core.spec import load_spec

    checked = fetched(Home.locate(home).folder, load_spec(spec, overrides or ()), weights=False, data=False)
    known = read_cards(cards)
    devices = local_cluster(known) if cluster is None else parse_cluster(cluster, known)
    if not checked.has.language_model:
        of_tokens = {
            "--response-tokens": response_tokens,
            "--prompt-tokens": prompt_tokens,
            "--judge-tokens": judge_tokens,
            "--calibrate": calibrate,
        }
        _refuse_tokens(checked, of_tokens)
        raise typer.Exit(_plan_workload(spec, checked, devices, output))
    fitted = None if calibrate is None else _fitted(calibrate, home, checked)
    assumed = _assumptions(response_tokens, prompt_tokens, judge_tokens, training_mfu)
    made = _planned(path=spec, spec=checked, devices=devices, assumed=assumed, fitted=fitted)
    if output is Output.JSON:
        from ops.cli.commands.planning.plan_document import plan_document

        write_json(plan_document(made))
    else:
        print_plan(made)
    raise typer.Exit(ExitCode.OK if made.fits else ExitCode.CONFIGURATION)


def _refuse_tokens(spec: RunSpec, given: Mapping[str, str | None]) -> None:
    """Raises `ConfigurationError` for an option that says something of tokens or of their times. given: by option."""
    if useless := [option for option, value in given.items() if value is not None]:
        raise ConfigurationError(
            f"{useless[0]}: is for language models; {spec.workload.title} says itself what it needs; leave it out"
        )


def _plan_workload(path: Path, spec: RunSpec, devices: DescribedCluster, output: Output) -> int:
    from ops.cli.commands.planning.plan_workload import print_workload_plan, workload_document
    from yatt_core.planning.own_workload import plan_workload

    try:
        made = plan_workload(spec, devices, Assumptions())
    except ConfigurationError as error:
        raise ConfigurationError(_at(path, error)) from None
    if output is Output.JSON:
        write_json(workload_document(made))
    else:
        print_workload_plan(made)
    return ExitCode.OK if made.fits else ExitCode.CONFIGURATION


def _planned(
    path: Path, spec: RunSpec, devices: DescribedCluster, assumed: Assumptions, fitted: FittedConstants | None
) -> RunPlan:
    """Plans the spec; errors name the file that it was read from."""
    from yatt_core.input_building.engine_check import check_exact_on
    from yatt_core.planning.cluster import CORE
    from yatt_core.planning.plan import plan_run

    if fitted is not None:
        # Lengths given as options take precedence over recorded ones.
        assumed = replace(assumed, prompt=assumed.prompt or fitted.prompt, response=assumed.response or fitted.response)
    try:
        check_exact_on(spec, processors=devices.card_name == CORE)
        return plan_run(spec, devices, assumed, fitted)
    except ConfigurationError as error:
        raise ConfigurationError(_at(path, error)) from None


def _at(path: Path, error: ConfigurationError) -> str:
    """Returns an error's lines with the file that the spec was read from."""
    return "\n".join(f"{path}: {line}" for line in str(error).splitlines())


def _assumptions(response: str | None, prompt: str | None, judge: str | None, training_mfu: float) -> Assumptions:
    return Assumptions(
        prompt=None if prompt is None else parse_spread(prompt, "--prompt-tokens"),
        response=None if response is None else parse_spread(response, "--response-tokens"),
        judge=None if judge is None else parse_spread(judge, "--judge-tokens"),
        training_mfu=training_mfu,
    )


def _fitted(run: str, home: Path | None, planned: RunSpec) -> FittedConstants:
    from ops.cli.commands.planning.calibration import calibrate

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        return calibrate(ledger, place, find_run(ledger, run), planned)


def print_plan(made: RunPlan) -> None:
    """Writes the plan as tables."""
    shape = made.roles.policy
    demand = made.demand
    write(
        f"{made.roles.spec.name} on {made.cluster} ({many(made.cluster.devices, 'device')}): "
        f"{large_number(shape.parameters)} parameters"
    )
    write(_verdict(made))
    write("")
    write_table(("role", "engine", "on"), _placement_rows(made), "Placement")
    if made.in_flight is not None:
        write(
            f"rollout.in_flight: {made.in_flight} keeps the engines full; the spec has {made.roles.spec.groups_in_flight}"
        )
    if made.times is not None:
        write(f"recommended: {made.times.recommended.mode}, {made.times.recommended.partition}")
        write("")
    print_memory(demand.roles, demand.totals, demand.owner)
    if made.times is not None:
        _print_times(made.roles.spec, made.times)
    elif not made.fits:
        _print_shortages(made)
    if made.files.described():
        write(f"\n{made.files.described()}")
    print_lines("Warnings", made.warnings)
    print_lines("Assumed", made.assumed)


def _verdict(made: RunPlan) -> str:
    if not made.fits:
        return "it does not fit"
    if made.demand.resident:
        return "it fits; all roles stay in memory"
    return "it fits if roles sleep while others work"


def _placement_rows(made: RunPlan) -> list[tuple[object, ...]]:
    roles = made.roles
    demand = made.demand
    rows: list[tuple[object, ...]] = []
    if demand.engines:
        rows.append(("rollout", roles.rollout.kind, _engines(demand.instances, demand.rollout)))
    if roles.judge is not None and demand.judge is not None:
        rows.append((roles.judge.name, roles.judge.engine.kind, _engines(demand.judge_instances, demand.judge)))
    rows.append(("trainer", roles.trainer.kind, _ranks(made)))
    if roles.reference:
        rows.append(("reference", roles.trainer.kind, "the trainer's ranks, in prepare"))
    if roles.critic is not None:
        rows.append(("critic", roles.trainer.kind, "the trainer's ranks, in prepare and learn"))
    if roles.teachers:
        rows.append(("teachers", roles.trainer.kind, "the trainer's ranks, in prepare"))
    return rows


def _ranks(made: RunPlan) -> str:
    """Returns how many ranks there are; those of FSDP2 share one copy of the model."""
    from yatt_core.spec.sections.placement import APART, LENT

    ranks = many(made.demand.ranks, "rank")
    copies = 1 if made.roles.trainer.kind == "fsdp2" else made.demand.copies
    devices = {APART: ", devices of its own", LENT: ", devices that it lends"}
    own = devices.get(made.roles.spec.placement.trainer, "")
    return f"{ranks}, {many(copies, 'copy')} of the model{own}"


def _engines(count: int, memory: EngineMemory) -> str:
    return f"{many(count, 'engine')}, {many(memory.devices, 'device')} each"


def _print_times(spec: RunSpec, times: Times) -> None:
    rows = [
        (o.mode, o.judges, o.collect_s, o.train_s, o.step_s, round(o.tokens_per_second), f"{o.idle:.0%}")
        for o in times.tried
    ]
    write("")
    write_table(("mode", "judging", "collect s", "train s", "step s", "tokens/s", "idle"), rows, "Predicted iteration")
    if times.load.scale > 1:
        write(f"simulated at 1/{times.load.scale} of the full size")
    total = times.recommended.step_s * spec.iterations
    sync = times.training.sync_s
    write(
        f"{many(spec.iterations, 'iteration', 'take', 'takes')} about {duration(total)}; each weight sync takes {duration(sync)}"
    )
    write(
        f"checkpoints: every {many(times.checkpoint_every, 'iteration')} would cost least "
        f"({times.checkpoint_overhead:.2%} of the time); "
        f"the spec says {spec.checkpoints.every}"
    )


def _print_shortages(made: RunPlan) -> None:
    print_shortages(made.demand.shortages)
    for settings in made.remedies:
        write(f"it would fit with {_set(settings)}")
    if (larger := made.larger) is not None:
        how = f"with {_set(larger.settings)}" if larger.settings else "unchanged"
        write(
            f"it would fit {how} on {many(larger.nodes, 'node')} of {made.cluster.devices_per_node}x{made.cluster.card_name}"
        )
    if not made.remedies and made.larger is None:
        write("found no change, pair of changes or number of such nodes that would make it fit")


def _set(settings: Sequence[str]) -> str:
    return " ".join(f"--set {setting}" for setting in settings)
