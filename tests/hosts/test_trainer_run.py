"""Runs with four trainer ranks over two hosts lose both hosts, go on from two others, and end with the bits of one host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.placement.seats import last_seats
from flows.run.creation import create_run
from flows.run.home import LEDGER_VARIABLE
from flows.run.results import run_results
from tests.flows.tools import same_result
from tests.hosts.campaign.bed import Bed
from tests.hosts.campaign.operator import Operator
from tests.hosts.network import NoHostsError
from tests.needs import NEEDS_MEGATRON, NEEDS_VLLM
from tests.recovery.ledger_watch import LedgerWatch
from tests.services import ROOT
from yatt_core.errors import ExitCode
from yatt_core.spec import RunSpec, load_spec

RANKS = 4
SECONDS = 240
SHAPE = (
    "iterations=4", "sft=null", "tracking.enabled=false", "data.prompts_per_iteration=16", "data.held_out=16",
    "data.sources=[{kind: reasoning_gym, task: spell_backward, size: 200, options: {min_word_len: 3, max_word_len: 4}}]",
    "controllers.per=node", "controllers.count=1", "checkpoints.every=1", "evaluation.every=4", "recovery.lease_seconds=5",
    "recovery.grace_seconds=15", "recovery.budgets.infrastructure=100",
)  # fmt: skip
TP2 = "{kind: megatron, dtype: float32, tensor_model_parallel_size: 2, data_parallel_size: 2}"
PP2 = "{kind: megatron, dtype: float32, pipeline_model_parallel_size: 2, data_parallel_size: 2}"


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    try:
        made = Bed(tmp_path, store=True, compute=4)
    except NoHostsError as error:
        pytest.skip(str(error))
    with made:
        monkeypatch.setenv(LEDGER_VARIABLE, made.ledger)
        yield made


@pytest.mark.verify
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("engine", "phases"),
    [
        pytest.param(f"{{kind: torch, ranks: {RANKS}}}", ("collect", "sync"), id="torch"),
        pytest.param(f"{{kind: fsdp2, ranks: {RANKS}, dtype: float32}}", ("learn", "checkpoint"), id="fsdp2"),
        pytest.param(TP2, ("learn", "sync"), id="megatron-tp2-dp2", marks=NEEDS_MEGATRON),
        pytest.param(PP2, ("collect", "checkpoint"), id="megatron-pp2-dp2", marks=NEEDS_MEGATRON),
    ],
)
def test_hosts_lost_in_any_phase_are_replaced_by_others(engine: str, phases: tuple[str, ...], bed: Bed) -> None:
    spec = load_spec(ROOT / "configs" / "quickstart.yaml", [f"trainer.engine={engine}", *SHAPE, *bed.overrides])
    one, two, three, four = bed.compute
    quiet = Operator(bed, create_run(bed.home, spec), [one], cpus=RANKS)
    finish(bed, quiet, spec)
    run = create_run(bed.home, spec)
    for iteration, (phase, hosts) in enumerate(zip(phases, ((one, two), (three, four)), strict=True), 1):
        operator = Operator(bed, run, hosts, cpus=RANKS // 2)
        tend_until_in(bed, operator, phase, iteration)
        for host in hosts:
            host.power_off(keep_disk=False)
        for host in hosts:
            host.power_on()
    last = Operator(bed, run, [two, three], cpus=RANKS // 2)
    finish(bed, last, spec)
    with Ledger.open(bed.ledger) as ledger:
        assert same_result(run_results(ledger, quiet.run), run_results(ledger, run))
        assert ledger.events.verify(run) is None
        seats = ledger.events.of_kind(run, "controllers")
    assert [sorted(seat.body["nodes"]) for seat in (seats[0], seats[-1])] == [["h1", "h2"], ["h2", "h3"]]


@pytest.mark.verify
@pytest.mark.timeout(1200)
@NEEDS_VLLM
def test_vllm_on_two_devices_answers_beside_a_trainer_over_two_hosts(bed: Bed) -> None:
    rollout = "{kind: vllm, instances: 1, dtype: float32, max_num_seqs: 32, tensor_parallel_size: 2}"
    engines = (f"rollout.engine={rollout}", f"trainer.engine={{kind: torch, ranks: {RANKS}}}")
    spec = load_spec(ROOT / "configs" / "quickstart.yaml", [*engines, *SHAPE, *bed.overrides])
    operator = Operator(bed, create_run(bed.home, spec), bed.compute[:2], cpus=RANKS // 2)
    finish(bed, operator, spec)
    with Ledger.open(bed.ledger) as ledger:
        gaps = [value for _, value in ledger.metrics.history(operator.run, "train_rollout_logprob_diff_max")]
        seats = last_seats(ledger, operator.run) or ()
    assert len(gaps) == spec.iterations and 0 < max(gaps) < 1e-4, "vLLM has the weights of every iteration"
    nodes = {role: {seat.node for seat in seats if seat.actor.startswith(role)} for role in ("rollout", "trainer")}
    assert (len(nodes["rollout"]), len(nodes["trainer"])) == (1, 2)
    assert {seat.device for seat in seats if seat.actor == "rollout-0"} == {"core0, core1"}


@pytest.mark.verify
@pytest.mark.timeout(1200)
@NEEDS_VLLM
def test_a_vllm_engine_over_two_hosts_loses_one_and_ends_with_the_bits_of_one_host(bed: Bed) -> None:
    rollout = "{kind: vllm, instances: 1, dtype: float32, max_num_seqs: 32, pipeline_parallel_size: 2}"
    engines = (f"rollout.engine={rollout}", "trainer.engine={kind: torch, ranks: 2}")
    spec = load_spec(ROOT / "configs" / "quickstart.yaml", [*engines, *SHAPE, *bed.overrides])
    one, two, *_ = bed.compute
    quiet = Operator(bed, create_run(bed.home, spec), [one], cpus=2)
    finish(bed, quiet, spec)
    operator = Operator(bed, create_run(bed.home, spec), [one, two], cpus=1)
    tend_until_in(bed, operator, "collect", 2)
    two.power_off(keep_disk=False)
    two.power_on()
    finish(bed, operator, spec)
    with Ledger.open(bed.ledger) as ledger:
        assert same_result(run_results(ledger, quiet.run), run_results(ledger, operator.run))
        gaps = [value for _, value in ledger.metrics.history(operator.run, "train_rollout_logprob_diff_max")]
        seats, whole = (last_seats(ledger, each.run) or () for each in (operator, quiet))
    assert len(gaps) == spec.iterations and 0 < max(gaps) < 1e-4, "both stages have the weights of every iteration"
    parts = {seat.actor: (seat.node, seat.device) for seat in seats}
    assert (parts["rollout-0"], parts["follower-0"]) == (("h1", "core0"), ("h2", "core0"))
    assert {seat.device for seat in whole if seat.actor == "rollout-0"} == {"core0, core1"}


def tend_until_in(bed: Bed, operator: Operator, name: str, iteration: int) -> None:
    """Tends a run until it is in a phase of an iteration."""
    watch = LedgerWatch(bed.ledger, operator.run)
    deadline = time.monotonic() + SECONDS
    while (phase := watch.open_phase()) is None or (phase.phase, phase.iteration) != (name, iteration):
        assert time.monotonic() < deadline, f"{name} of {iteration} does not come: {operator.exits}"
        operator.tend()
        time.sleep(0.01)
    watch.close()


def finish(bed: Bed, operator: Operator, spec: RunSpec) -> None:
    """Tends a run until it has ended, then ends its hosts' processes."""
    deadline = time.monotonic() + SECONDS
    while operator.driver_ended() != ExitCode.OK:
        assert time.monotonic() < deadline, operator.exits
        operator.tend()
        time.sleep(0.2)
    operator.end()
