"""What a whole simulated run with killed drivers is charged: by records in its audit chain, in parts that add up."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from db.write.lease import LOST
from flows.billing.held_time import held_spans, total_charges
from flows.billing.price_file import check_prices
from flows.branching.branches import revise
from flows.reports.costs import charges_of
from flows.run.home import Home
from flows.run.results import run_results
from tests.flows.driver.test_outages import MINUTE, Outage
from tests.flows.simulated import BranchRunActors, Simulation
from tests.matrix import in_verify
from tests.services import ROOT
from yatt_core.costs.billing import BILLING, BillingRecord
from yatt_core.costs.charging import FAULTS, TRAINING, Amounts, rounded
from yatt_core.errors import ConfigurationError, ExitCode
from yatt_core.spec import load_spec

PRICES = """
currency: EUR
pue: 1.2
carbon_g_per_kwh: 400
devices:
  - {device: H100, per_hour: PRICE, watts: 700}
"""
DEVICES = 2
KILLS = ("collect:2", "learn:3", "commit:4")


def with_prices(folder: Path, price: str = "3.60", more: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prices.yaml").write_text(PRICES.replace("PRICE", price) + more)


def killed_thrice(simulation: Simulation) -> None:
    for place in KILLS:
        assert simulation.drive(killed_at=place, cold=True) is None
    outcome = simulation.drive(cold=True)
    assert outcome is not None and outcome.state == "completed"


def records(simulation: Simulation) -> list[BillingRecord]:
    with simulation.ledger() as ledger:
        return [BillingRecord.of(link.body) for link in ledger.events.of_kind(simulation.run, BILLING)]


def test_the_parts_of_a_killed_run_add_up_and_name_its_faults(tmp_path: Path) -> None:
    with_prices(tmp_path)
    simulation = Simulation.of(
        tmp_path, "billing.project=math", "billing.owner=ada", "trainer.engine.ranks=2", "iterations=6"
    )
    killed_thrice(simulation)
    (record,) = records(simulation)
    assert (record.project, record.owner, record.currency) == ("math", "ada", "EUR")
    assert {kind: held.count for kind, held in record.devices.items()} == {"H100": DEVICES}
    with simulation.ledger() as ledger:
        parts = charges_of(ledger, simulation.run)
        totals = total_charges(ledger, simulation.run)
        spans = held_spans(ledger, simulation.run)
        assert [row.outcome for row in ledger.overview.sessions(simulation.run)][:3] == [LOST] * 3
        assert ledger.events.verify(simulation.run) is None
    whole = sum(totals.values(), Amounts())
    assert (
        sum(parts.values(), Amounts()) == whole and whole.device_ms == DEVICES * sum(s.end - s.start for s in spans) > 0
    )
    assert whole.cost == Decimal(whole.device_ms) / 1_000_000
    causes = {place.cause for place in parts}
    assert {TRAINING, FAULTS} <= causes
    assert "recover" in {place.phase for place in parts if place.cause == FAULTS}


def test_a_resumed_session_is_charged_until_it_gives_its_devices_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its devices are those of the session before, so that no record begins with it."""
    simulation = Simulation.of(tmp_path, "trainer.engine.ranks=2", "iterations=6")
    assert simulation.drive(until=2) is not None
    began = simulation.cluster.clock.time_ms()
    outage = Outage(simulation, "learn", 40 * MINUTE)
    monkeypatch.setattr(BranchRunActors, "learn", lambda actors, *given: outage(actors, *given))
    outcome = simulation.drive()
    assert outcome is not None and outcome.state == "completed"
    held = 5 * 60_000  # `recovery.hold_minutes`
    (_, given_back, *_) = records(simulation)
    assert not given_back.devices
    assert given_back.since >= began + held


def test_prices_change_no_result(tmp_path: Path) -> None:
    digests = []
    for name in ("plain", "priced"):
        if name == "priced":
            with_prices(tmp_path / name, "1000000", "budgets: [{scope: owner, name: ada, cost: 1, action: alert}]\n")
        simulation = Simulation.of(tmp_path / name, "iterations=4")
        simulation.drive()
        with simulation.ledger() as ledger:
            results = run_results(ledger, simulation.run)
            digests.append((results.weights_digest, results.experience_digest, results.metrics_digest))
    assert digests[0] == digests[1]


def test_a_changed_price_file_applies_from_then_on_and_what_was_recorded_stays(tmp_path: Path) -> None:
    with_prices(tmp_path, "3.60")
    simulation = Simulation.of(tmp_path, "trainer.engine.ranks=2", "iterations=6")
    simulation.drive(until=2)
    with simulation.ledger() as ledger:
        before = charges_of(ledger, simulation.run)
    with_prices(tmp_path, "7.20")
    simulation.drive(until=4)
    first, second = records(simulation)
    assert [each.devices["H100"].tariff.per_hour for each in (first, second)] == [Decimal("3.60"), Decimal("7.20")]
    with simulation.ledger() as ledger:
        after = charges_of(ledger, simulation.run)
        spans = held_spans(ledger, simulation.run)
    assert second.since == spans[1].start
    cheap, dear = (DEVICES * (span.end - span.start) for span in spans)
    assert sum(before.values(), Amounts()).cost == rounded_cost(cheap, "3.60")
    assert sum(after.values(), Amounts()).cost == rounded_cost(cheap, "3.60", dear, "7.20")


def rounded_cost(*terms: object) -> Decimal:
    pairs = zip(terms[::2], terms[1::2], strict=True)
    return rounded(sum((Fraction(int(str(ms)), 3_600_000) * Fraction(str(price)) for ms, price in pairs), Fraction(0)))


def test_a_run_that_was_priced_late_says_which_part_is_unknown(tmp_path: Path) -> None:
    simulation = Simulation.of(tmp_path, "trainer.engine.ranks=2", "iterations=4")
    simulation.drive(until=2)
    with_prices(tmp_path)
    simulation.drive()
    with simulation.ledger() as ledger:
        charges = charges_of(ledger, simulation.run)
        spans = held_spans(ledger, simulation.run)
    total = sum(charges.values(), Amounts())
    assert total.unpriced_ms == DEVICES * (spans[0].end - spans[0].start)
    assert total.cost == rounded_cost(DEVICES * (spans[1].end - spans[1].start), "3.60")


@pytest.mark.parametrize("scope", ["spec", "project", *in_verify("run", "owner")])
def test_a_used_up_budget_pauses_the_run_until_it_is_raised(tmp_path: Path, scope: str) -> None:
    name = {"run": "virtual-1", "project": "math", "owner": "ada"}.get(scope, "")

    def budget(limit: str) -> str:
        return "" if scope == "spec" else f"budgets: [{{scope: {scope}, name: {name}, cost: {limit}}}]\n"

    own = ["guards.budget={cost: 0.2}"] if scope == "spec" else []
    with_prices(tmp_path, "3.60", budget("0.2"))
    simulation = Simulation.of(tmp_path, "iterations=4", "billing={project: math, owner: ada}", *own)
    outcome = simulation.drive()
    assert outcome is not None and (outcome.state, outcome.exit_code) == ("paused", ExitCode.PAUSED)
    assert 0 <= outcome.iteration < 4 and "the budget is 0.2" in outcome.reason
    with simulation.ledger() as ledger:
        alarms = [(row.rule, row.action) for row in ledger.alarms.of(simulation.run)]
        assert ledger.records.checkpoints(simulation.run)[0].iteration == outcome.iteration, "a safe point"
        assert sum(total_charges(ledger, simulation.run).values(), Amounts()).cost >= Decimal("0.2")
    assert alarms == [("budget", "alert"), ("budget", "pause")], "a warning first, each once"
    again = simulation.drive()
    assert again is not None and (again.state, again.iteration) == ("paused", outcome.iteration), "nothing is started"
    with_prices(tmp_path, "3.60", budget("1000"))
    if scope == "spec":
        revise(Home(tmp_path), simulation.run, ["guards.budget.cost=1000"])
    done = simulation.drive()
    assert done is not None and (done.state, done.iteration) == ("completed", 4)


def test_runs_of_a_project_share_its_budget(tmp_path: Path) -> None:
    with_prices(tmp_path)
    first = Simulation.of(tmp_path, "iterations=2", "billing.project=math")
    first.drive()
    with first.ledger() as ledger:
        used = sum(total_charges(ledger, first.run).values(), Amounts()).cost
    with_prices(tmp_path, more=f"budgets: [{{scope: project, name: math, cost: {used}}}]\n")
    second, other = (Simulation.of(tmp_path, "iterations=2", f"billing.project={name}") for name in ("math", "code"))
    outcome = second.drive()
    assert outcome is not None and outcome.state == "paused" and outcome.iteration == 0
    finished = other.drive()
    assert finished is not None and finished.state == "completed"


def test_a_budget_that_no_price_can_check_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("currency: EUR\ndevices: [{device: core, per_hour: 1}]\n")
    simulation = Simulation.of(tmp_path, "guards.budget.cost=5")
    with pytest.raises(ConfigurationError, match="per_hour of device 'H100'"):
        simulation.drive()


def test_a_shared_budget_that_no_price_can_check_is_refused(tmp_path: Path) -> None:
    budget = "budgets: [{scope: owner, name: NAME, cost: 5}]\n"
    prices = "currency: EUR\ndevices: [{device: core, per_hour: 1}]\n"
    (tmp_path / "prices.yaml").write_text(prices + budget.replace("NAME", "ada"))
    with pytest.raises(ConfigurationError, match=r"per_hour of device 'H100'.* a budget of the file cannot be checked"):
        Simulation.of(tmp_path, "billing.owner=ada").drive()
    (tmp_path / "prices.yaml").write_text(prices + budget.replace("NAME", "ben"))
    outcome = Simulation.of(tmp_path, "billing.owner=ada", "iterations=2").drive()
    assert outcome is not None and outcome.state == "completed"


def test_a_budget_whose_price_ends_within_a_session_is_refused_from_then_on(tmp_path: Path) -> None:
    with_prices(tmp_path, more="budgets: [{scope: owner, name: ada, cost: 50}]\n")
    path = tmp_path / "prices.yaml"
    path.write_text(path.read_text().replace("watts: 700", "watts: 700, valid_until: 2023-11-14T22:23:20+00:00"))
    with pytest.raises(ConfigurationError, match="per_hour of device 'H100'"):
        Simulation.of(tmp_path, "iterations=6", "billing.owner=ada").drive()


@pytest.mark.parametrize(
    ("period", "state"), [("valid_from: 2001-01-01", "paused"), ("valid_until: 2001-01-01", "completed")]
)
def test_a_budget_applies_in_its_period(tmp_path: Path, period: str, state: str) -> None:
    """Simulated time begins in 2023."""
    with_prices(tmp_path, more=f"budgets: [{{scope: owner, name: ada, cost: 0.000001, {period}}}]\n")
    outcome = Simulation.of(tmp_path, "iterations=2", "billing.owner=ada").drive()
    assert outcome is not None and outcome.state == state


def test_a_budget_without_a_price_file_is_refused_before_anything_starts(tmp_path: Path) -> None:
    spec = load_spec(ROOT / "tests" / "specs" / "virtual.yaml", ["guards.budget.carbon_kg=5"])
    with pytest.raises(ConfigurationError, match=r"guards\.budget\.carbon_kg: there are no prices"):
        check_prices(Home(tmp_path), spec)
    with_prices(tmp_path)
    check_prices(Home(tmp_path), spec)


def test_a_price_with_a_date_applies_from_that_moment_within_a_session(tmp_path: Path) -> None:
    """Simulated time begins at 22:13:20; each iteration takes 300 s."""
    with_prices(tmp_path, more="  - {device: H100, per_hour: 7.20, valid_from: 2023-11-14T22:23:20+00:00}\n")
    simulation = Simulation.of(tmp_path, "iterations=6")
    simulation.drive()
    first, second = records(simulation)
    assert second.since - first.since == 600_000, "not when the driver noticed it"
    with simulation.ledger() as ledger:
        charges = total_charges(ledger, simulation.run)
        (span,) = held_spans(ledger, simulation.run)
    dear = span.end - span.start - 600_000
    assert dear > 0
    assert sum(charges.values(), Amounts()).cost == rounded_cost(600_000, "3.60", dear, "7.20")
