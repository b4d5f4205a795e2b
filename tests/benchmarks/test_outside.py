"""The campaign of `benchmarks.outside`: its plan, its gates and its figures; and, in `make verify`, a short one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientSession, ClientTimeout

from benchmarks.outside import answers, report
from benchmarks.outside.__main__ import campaign
from benchmarks.outside.drive import Driven, Struck
from benchmarks.outside.gates import HttpGate, RequestLog, SocketGate, new_session, passing_on
from benchmarks.outside.report import Request, RunFacts, Runs, Sample
from benchmarks.outside.schedule import (
    LONG,
    MASKING,
    MODES,
    SHORT,
    TEN,
    WAITED_FOR,
    Kind,
    Mode,
    Outage,
    only,
    plan,
    short_plan,
)
from benchmarks.outside.watch import Seen, Wait, Watch
from tests.flows.simulated import Simulation
from tests.hosts.network import NoHostsError

S = 1000
PLACE = ("b000/i000001", "w00-s0000", 0, 0)


# -- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_campaign_has_the_outages_that_it_promises_in_its_time(seed: int) -> None:
    planned = plan(seed, 75.0)
    counts = planned.counts()
    assert counts[SHORT] >= 30 and counts[LONG] >= 8 and counts[TEN] >= 2
    assert planned.seconds <= 62 * 60
    assert plan(seed, 75.0) == planned != plan(seed + 1, 75.0)
    assert {outage.kind for outage in planned.outages} == set(Kind)
    assert any(outage.is_partial for outage in planned.outages)
    assert any(len(slot) > 1 for slot in planned.unmasked)
    names = {outage.name: outage.seconds for outage in planned.outages if outage.name}
    assert names == {
        "judge-three-minutes": 180.0,
        "judge-ten-minutes": 600.0,
        "node-one-minute": 60.0,
        "node-ten-minutes": 600.0,
    }
    alone = [slot for slot in planned.unmasked if slot[0].name in ("judge-three-minutes", "node-one-minute")]
    assert all(len(slot) == 1 for slot in alone)


def test_nothing_in_the_compared_run_can_be_masked_by_the_plan() -> None:
    for seed in range(20):
        planned = plan(seed, 75.0)
        for outage in (outage for slot in planned.unmasked for outage in slot):
            assert not (outage.is_partial and outage.kind in MASKING)
            assert outage.name or outage.mode in MODES[outage.kind]
        for slot in planned.unmasked:
            assert max(Counter(outage.kind for outage in slot).values()) == 1


def test_too_little_time_is_refused_and_kinds_can_be_chosen() -> None:
    with pytest.raises(ValueError, match="expected more --minutes"):
        plan(0, 30.0)
    kept = only(short_plan(0), [Kind.JUDGE])
    assert {outage.kind for outage in kept.outages} == {Kind.JUDGE}
    assert len(kept.unmasked) == len(kept.masking) == 1


# -- the gates --------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def ask(session: ClientSession, port: int, seed: int) -> str:
    body = {"messages": [{"role": "user", "content": "good?"}], "seed": seed}
    try:
        async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as answer:
            return str(answer.status)
    except (ClientConnectionError, TimeoutError) as error:
        return "hangs" if isinstance(error, TimeoutError) else "refused"


def test_a_gate_is_away_as_it_is_told_and_notes_every_request(tmp_path: Path) -> None:
    async def scenario() -> tuple[dict[str, str], Counter[str]]:
        port = free_port()
        log = RequestLog(tmp_path / "requests")
        gate = HttpGate("judge", "127.0.0.1", port, log, answers.judge, lambda _, body: answers.judged(body), 0)
        await gate.start()
        said = {}
        async with ClientSession(timeout=ClientTimeout(total=0.5)) as session:
            said["there"] = await ask(session, port, 1)
            for number, mode in enumerate((Mode.REFUSE, Mode.ERROR, Mode.HANG), 2):
                await gate.set(mode)
                said[mode] = await ask(session, port, number)
                await gate.set(None)
                said[f"after {mode}"] = await ask(session, port, number)
            await gate.set(Mode.THIRD)
            parts = Counter([await ask(session, port, 10 + number) for number in range(60)])
        await gate.set(Mode.REFUSE)
        return said, parts

    said, parts = asyncio.run(scenario())
    back = {f"after {mode}": "200" for mode in (Mode.REFUSE, Mode.ERROR, Mode.HANG)}
    assert said == {"there": "200", Mode.REFUSE: "refused", Mode.ERROR: "503", Mode.HANG: "hangs", **back}
    assert 10 <= parts["503"] <= 35 and parts["200"] + parts["503"] == 60
    noted = report.read_requests(tmp_path / "requests")
    assert [each.answered for each in noted if each.what == "3"] == [False, True]
    assert sum(not each.answered for each in noted if int(each.what) >= 10) == parts["503"]
    assert {each.told for each in noted if each.answered} == {"yes", "no"}


def test_a_gate_passes_on_what_a_server_says(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, str, str]:
        behind = free_port()
        port = free_port()
        log = RequestLog(tmp_path / "requests")
        server = HttpGate("tool", "127.0.0.1", behind, log, answers.calculate, lambda _, body: answers.called(body), 0)
        await server.start()
        async with new_session() as session, ClientSession() as client:
            target = passing_on(f"http://127.0.0.1:{behind}", session)
            gate = HttpGate("store", "127.0.0.1", port, log, target, lambda request, _: request.path, 0)
            await gate.start()
            async with client.post(f"http://127.0.0.1:{port}/calculate?a=1", json={"expression": "6*7"}) as answer:
                told = answer.status, answer.headers["Content-Type"], await answer.text()
            await gate.set(Mode.REFUSE)
        await server.set(Mode.REFUSE)
        return told

    status, kind, text = asyncio.run(scenario())
    assert (status, json.loads(text)) == (200, {"value": "42"}) and kind.startswith("application/json")
    assert [(each.gate, each.what) for each in report.read_requests(tmp_path / "requests")] == [
        ("tool", "6*7"),
        ("store", "/calculate"),
    ]


def test_connections_to_a_socket_are_cut_and_come_back(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async def said(port: int) -> bytes:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return b"refused"
        writer.write(b"hello")
        try:
            return await asyncio.wait_for(reader.read(100), 0.3)
        except TimeoutError:
            return b"hangs"
        finally:
            writer.close()

    async def scenario() -> list[bytes]:
        behind = await asyncio.start_unix_server(echo, tmp_path / "socket")
        port = free_port()
        log = RequestLog(tmp_path / "requests")
        gate = SocketGate("ledger", "127.0.0.1", port, log, tmp_path / "socket", 0)
        await gate.start()
        found = [await said(port)]
        for mode in (Mode.REFUSE, Mode.HANG):
            await gate.set(mode)
            found.append(await said(port))
            await gate.set(None)
            found.append(await said(port))
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
        await gate.set(Mode.REFUSE)
        try:
            found.append(await asyncio.wait_for(reader.read(10), 5.0) or b"cut")
        except ConnectionResetError:
            found.append(b"cut")
        behind.close()
        return found

    assert asyncio.run(scenario()) == [b"hello", b"refused", b"hello", b"hangs", b"hello", b"cut"]


# -- the figures ------------------------------------------------------------------------------------------------------


def request(what: str, at: int, answered: bool = True, gate: str = "judge", told: str = "yes") -> Request:
    return Request(gate, what, at, at + 10, answered, told if answered else "")


def sample(seed: str, unscored: str = "", answer: str = "yes", calls: tuple[str, ...] = ()) -> Sample:
    return Sample(PLACE, seed, 1, unscored, "stop", answer, calls)


def facts(
    requests: list[Request] | None = None,
    samples: list[Sample] | None = None,
    struck: list[Struck] | None = None,
    seen: Seen | None = None,
    devices: list[tuple[int, int]] | None = None,
) -> RunFacts:
    driven = Driven("run-1", 0, struck or [], seen or Seen())
    return RunFacts(
        driven=driven,
        requests=requests or [],
        samples=samples or [],
        devices=devices or [(0, 2)],
        checkpoint_ms=5 * S,
        hold_ms=300 * S,
        began_at=0,
        committed={1: (0, 50 * S)},
    )


def away(kind: Kind, begin: int, end: int, mode: Mode = Mode.ERROR) -> Struck:
    return Struck(Outage(kind, mode, (end - begin) / S), begin, end, end)


def test_a_score_without_an_answer_is_learnt_from_what_failed() -> None:
    asked = [
        request("1", 0, answered=False),
        request("2", 0, answered=False),
        request("2", 5 * S),
        request("3", 0, told="no"),
    ]
    learnt = facts(asked, [sample("1"), sample("2"), sample("3", answer="no")])
    assert [each.seed for each in report.learned_from_failed(learnt)] == ["1"]
    assert report.learned_from_failed(facts(asked, [sample("1", unscored="judge/infrastructure")])) == []
    assert len(report.learned_from_failed(facts(asked, [sample("3", answer="yes")]))) == 1
    called = [*asked, request("6*7", 0, answered=False, gate="tool")]
    assert len(report.learned_from_failed(facts(called, [sample("2", calls=("6*7",))]))) == 1


def test_a_question_is_asked_twice_only_if_its_answer_was_durable() -> None:
    twice = [request("1", 10 * S), request("1", 30 * S)]
    assert report.asked_again(facts(twice, [sample("1")], seen=Seen(durable={PLACE: 12 * S}))).twice == 1
    later = facts(twice, [sample("1")], seen=Seen(durable={PLACE: 31 * S}))
    assert (report.asked_again(later).twice, report.asked_again(later).in_flight) == (0, 1)
    lost = facts(twice, [sample("1")], [away(Kind.NODE, 11 * S, 20 * S)], Seen(durable={PLACE: 31 * S}))
    assert (report.asked_again(lost).twice, report.asked_again(lost).with_node) == (0, 1)
    once = [request("1", 10 * S, answered=False), request("1", 30 * S)]
    assert report.asked_again(facts(once, [sample("1")], seen=Seen(durable={PLACE: 12 * S}))).twice == 0


def test_calls_beyond_those_of_the_samples_are_probes_of_an_outage_or_were_made_twice() -> None:
    def extra(times: int, struck: list[Struck]) -> report.Again:
        calls = [request("6*7", 10 * S + number, gate="tool") for number in range(1 + times)]
        return report.asked_again(facts(calls, [sample("1", calls=("6*7",))], struck))

    assert extra(0, []) == report.Again()
    assert extra(1, []).twice == 1
    outage = [away(Kind.TOOL, 5 * S, 9 * S)]
    assert (extra(3, outage).probes, extra(3, outage).twice) == (3, 0)
    assert extra(40, outage).twice == 40 - 2 * report.PROBES_A_CONTROLLER
    assert extra(2, [away(Kind.NODE, 10 * S, 60 * S)]).with_node == 2


def test_time_to_go_on_counts_from_the_last_return_of_all_and_by_whether_devices_were_held() -> None:
    wait = Wait("judge", 5 * S, None)
    seen = Seen(progress=[1 * S, 33 * S, 40 * S], waits={("judge", 5 * S): (wait, 32 * S)})
    alone = away(Kind.JUDGE, 2 * S, 30 * S)
    assert report.back_of(facts(struck=[alone], seen=seen), alone) == (3.0, False)
    alone.other_back = 32 * S
    assert report.back_of(facts(struck=[alone], seen=seen), alone) is None, "something else was still away"
    alone.back = alone.other_back
    given = Seen(progress=[33 * S], waits={("judge", 5 * S): (Wait("judge", 5 * S, 20 * S), 32 * S)})
    assert report.back_seconds([facts(struck=[alone], seen=given)]) == ([], [1.0])
    unnoticed = away(Kind.STORE, 50 * S, 60 * S)
    assert report.back_of(facts(struck=[unnoticed], seen=Seen(progress=[55 * S, 70 * S])), unnoticed) is None
    mlflow = away(Kind.MLFLOW, 10 * S, 20 * S)
    points = [request("POST /log", at, answered, gate="mlflow") for at, answered in ((15 * S, False), (24 * S, True))]
    assert report.back_of(facts(points, struck=[mlflow]), mlflow) == (4.01, False)
    mlflow.other_back = 300 * S
    assert report.back_of(facts(points, struck=[mlflow]), mlflow) is None, "a run that waits does not ask it"


def test_devices_that_a_run_takes_again_while_it_still_waits_were_given_back(tmp_path: Path) -> None:
    watch = Watch(f"sqlite:///{tmp_path / 'ledger.db'}", "outside-1", tmp_path)
    for now, returned_at in ((1, None), (2, 300), (3, None)):
        watch._note(Wait("judge", 5, returned_at), now)
    assert watch.seen.waits == {("judge", 5): (Wait("judge", 5, 300), 3)}


def test_an_outage_is_unmasked_if_no_sample_of_its_iterations_lost_its_score_to_a_failure() -> None:
    struck = [away(Kind.JUDGE, 10 * S, 20 * S), away(Kind.JUDGE, 60 * S, 70 * S)]
    assert report.unmasked_outages(facts(samples=[sample("1")], struck=struck)) == 2
    assert report.unmasked_outages(facts(samples=[sample("1", "judge/infrastructure")], struck=struck)) == 1


def test_devices_are_held_over_the_bound_if_they_are_charged_after_it() -> None:
    since = 10 * S
    wait = {("judge", since): (Wait("judge", since, None), since + 600 * S)}
    kept = facts(seen=Seen(waits=wait), devices=[(0, 2)])
    assert report.hours_over_bound(kept) == pytest.approx(2 * 294.5 / 3600)
    given = facts(seen=Seen(waits=wait), devices=[(0, 2), (since + 304 * S, 0), (since + 610 * S, 2)])
    assert report.hours_over_bound(given) == 0
    tried = facts(
        seen=Seen(waits=wait), devices=[(0, 2), (since + 304 * S, 0), (since + 400 * S, 2), (since + 436 * S, 0)]
    )
    assert report.hours_over_bound(tried) == pytest.approx(2 * 36 / 3600), "a try that took devices counts"
    back = facts(struck=[away(Kind.JUDGE, 0, since + 400 * S)], seen=Seen(waits=wait), devices=tried.devices)
    assert report.hours_over_bound(back) == 0, "it is back, and devices are taken again"
    brief = facts(seen=Seen(waits={("judge", since): (Wait("judge", since, None), since + 200 * S)}))
    assert report.hours_over_bound(brief) == 0


def test_any_broken_promise_shows() -> None:
    seen = Seen(progress=[33 * S])
    struck = [away(Kind.JUDGE, 2 * S, 30 * S)]
    fine = Runs(facts([request("1", 0, False)], [], struck, seen), None, "", True, 4)
    told = report.figures_of(fine)
    assert report.holds(told) and told["outages"] == told["outages_judge"] == 1
    harm: list[dict[str, float | None]] = [
        {key: 1.0} for key in ("runs_ended", "stuck", "learned_from_failed", "asked_twice")
    ]
    harm += [{"device_hours_held_over_bound": 0.1}, {"digests_equal": 0.0}, {"audit_chains_sound": 0.0}]
    harm += [{"back_after_s_p95": 21.0}, {"back_after_released_s_max": 91.0}]
    assert not any(report.holds({**told, **each}) for each in harm)
    different = replace(fine, difference="weights of iteration 3")
    assert report.figures_of(different)["digests_equal"] == 0


def test_the_first_difference_between_two_runs_is_named_and_later_iterations_count_nothing(tmp_path: Path) -> None:
    shapes = {
        "short": ("iterations=2",),
        "long": ("iterations=3",),
        "other": ("iterations=2", "data.prompts_per_iteration=4"),
    }
    made = {name: Simulation.of(tmp_path / name, "evaluation.every=1", *shape) for name, shape in shapes.items()}
    for simulation in made.values():
        assert simulation.drive() is not None
    with ExitStack() as opened:
        runs = {name: (opened.enter_context(each.ledger()), each.run) for name, each in made.items()}
        assert report.first_difference(runs["short"], runs["long"], 2) == ""
        assert report.first_difference(runs["long"], runs["short"], 3).endswith("of iteration 3")
        assert report.first_difference(runs["short"], runs["other"], 2).endswith(("of iteration 0", "of iteration 1"))


def test_what_is_waited_for_and_what_is_not() -> None:
    assert set(Kind) - WAITED_FOR == {Kind.MLFLOW, Kind.PREFECT}


@pytest.mark.verify
@pytest.mark.timeout(1500)
def test_runs_go_on_through_a_short_campaign(tmp_path: Path) -> None:
    said: list[str] = []
    try:
        runs = campaign(tmp_path, short_plan(0), 0, 60.0, [], said.append)
    except NoHostsError as error:
        pytest.skip(str(error))
    told = report.figures_of(runs)
    assert report.holds(told | {"back_after_s_p95": None}), (told, report.details_of(runs), said)
    assert told["outages"] == len(short_plan(0).outages)
