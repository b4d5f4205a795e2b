"""Plans a run before any device is rented: memory, placement and times, as `yatt plan` does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flows.run.home import Home
from ops.cli.commands.planning.calibration import calibrate as fit
from ops.cli.commands.planning.plan_document import plan_document
from ops.terminal.lookup import find_run, opened_ledger
from yatt.spec import Spec, as_spec
from yatt_core.planning.assumptions import Assumptions, parse_spread
from yatt_core.planning.cluster import local_cluster, parse_cluster, read_cards
from yatt_core.planning.plan import RunPlan as PlanResult
from yatt_core.planning.plan import plan_run

__all__ = ["PlanResult", "plan", "plan_document"]


def plan(
    spec: Spec | str | Path,
    cluster: str | None = None,
    *,
    cards: str | Path | None = None,
    prompt_tokens: str | None = None,
    response_tokens: str | None = None,
    training_mfu: float = 0.35,
    calibrate: str | None = None,
    home: str | Path | None = None,
) -> PlanResult:
    """Predicts what a spec needs on given devices; loads and starts nothing.

    spec: a `Spec` or the path of a spec file.
    cluster: such as "8xH200" or "8xH200,16 nodes"; by default this machine's devices.
    cards: a YAML file that describes further types of devices.
    prompt_tokens, response_tokens: log-normal distributions of lengths, as "MEDIAN:SIGMA".
    training_mfu: model FLOPs utilization of training, from 0.01 to 1.
    calibrate: a run whose telemetry replaces the constants of the cards.

    Returns the plan: `fits`, `demand` (bytes by role and stage), `times` (seconds), `remedies`, `warnings`;
    `yatt.planning.plan_document` makes a dictionary of it. Raises `ConfigurationError` and `RunNotFound`.
    """
    model = as_spec(spec).model
    known = read_cards(None if cards is None else Path(cards))
    devices = local_cluster(known) if cluster is None else parse_cluster(cluster, known)
    assumed = Assumptions(
        prompt=None if prompt_tokens is None else parse_spread(prompt_tokens, "prompt_tokens"),
        response=None if response_tokens is None else parse_spread(response_tokens, "response_tokens"),
        training_mfu=training_mfu,
    )
    if calibrate is None:
        return plan_run(model, devices, assumed)
    place = Home.locate(None if home is None else Path(home))
    with opened_ledger(place) as ledger:
        fitted = fit(ledger, place, find_run(ledger, calibrate), model)
    assumed = replace(assumed, prompt=assumed.prompt or fitted.prompt, response=assumed.response or fitted.response)
    return plan_run(model, devices, assumed, fitted)
