"""Several endpoints of one judge, limits that runs share, and requests that some endpoints refuse: with real servers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.judges.parts import endpoint, item, verdicts
from tests.judges.server import KEY, Reply, completion, serving
from yatt_core.errors import AwayError, ConfigurationError, InfrastructureError
from yatt_core.judges import endpoint as endpoint_judge
from yatt_core.judges import failover, limits
from yatt_core.judges.completion import smallest_question
from yatt_core.judges.effort import JudgementMeter
from yatt_core.judges.endpoint import EndpointJudge
from yatt_core.judges.limits import BURST_SECONDS, FAILURES_THAT_OPEN
from yatt_core.protocols.judges import JudgeRequest


def yes(body, number):
    return Reply(body=completion("yes"))


def down(body, number):
    return Reply(503)


def scores(said):
    return [verdict.judgements[0].score for verdict in said.values()]


def test_a_request_that_fails_at_one_endpoint_is_answered_by_another_at_once(monkeypatch: pytest.MonkeyPatch):
    # On a busy machine, twenty requests may take longer than the pause after which an open circuit is tried again.
    monkeypatch.setattr(limits, "pause_before", lambda openings, chance: 3600.0)
    with serving(down) as first, serving(yes) as second:
        part = endpoint(first.url, fallbacks=[{"url": second.url}], backoff_seconds=60.0, max_concurrent_requests=1)
        said = verdicts(EndpointJudge(part), *map(item, range(20)))
    assert scores(said) == [1.0] * 20, "with a pause of a minute between retries, there was none"
    assert len(second.bodies) == 20
    assert len(first.bodies) == FAILURES_THAT_OPEN, "then its circuit was open"


def test_an_endpoint_that_is_back_is_used_again(tmp_path: Path):
    back = threading.Event()
    answers = lambda body, number: yes(body, number) if back.is_set() else Reply(503)  # noqa: E731
    with serving(answers) as first, serving(yes) as second:
        part = endpoint(first.url, fallbacks=[{"url": second.url}], max_concurrent_requests=1)
        judge = EndpointJudge(part, folder=tmp_path)
        verdicts(judge, *map(item, range(FAILURES_THAT_OPEN)))
        back.set()
        for shared in judge._endpoints._each:
            shared.shared.change(lambda state, now: setattr(state, "probe_at", 0.0))
        before = len(first.bodies)
        # Another run of the home knows of the open circuit, and sees that it may close.
        verdicts(EndpointJudge(part, folder=tmp_path), *map(item, range(3)))
        assert len(first.bodies) - before == 3


def test_a_judge_is_away_only_if_all_its_endpoints_are():
    with serving(down) as first, serving(down) as second:
        part = endpoint(first.url, fallbacks=[{"url": second.url}], retries=1, backoff_seconds=0.01)
        with pytest.raises(
            AwayError, match=rf"{first.url}, {second.url} is away: {first.url}: status 503; {second.url}"
        ):
            verdicts(EndpointJudge(part), item(1))


def test_no_endpoint_gets_the_key_of_another(monkeypatch):
    monkeypatch.setenv("FIRST", KEY)
    monkeypatch.setenv("SECOND", "sk-of-the-second")
    with serving(down) as first, serving(down) as second, serving(yes) as third:
        fallbacks = [{"url": second.url, "credential": {"env": "SECOND"}}, {"url": third.url}]
        part = endpoint(first.url, credential={"env": "FIRST"}, fallbacks=fallbacks)
        verdicts(EndpointJudge(part), item(1))
    assert first.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert second.headers[0]["Authorization"] == "Bearer sk-of-the-second"
    assert "Authorization" not in third.headers[0]


def test_a_wish_to_be_left_alone_holds_for_all_requests_of_the_home(tmp_path: Path):
    times = []

    def answer(body, number):
        times.append(time.time())
        return Reply(429, headers={"Retry-After": "1"}) if number == 0 else yes(body, number)

    with serving(answer) as server:
        part = endpoint(server.url, retries=0)
        one = EndpointJudge(part, folder=tmp_path)
        other = EndpointJudge(part, folder=tmp_path)
        first = threading.Thread(target=verdicts, args=(one, item(0)))
        first.start()
        while not list(tmp_path.glob("*.json")):
            time.sleep(0.005)
        said = verdicts(other, *map(item, range(1, 6)))
        first.join()
    assert scores(said) == [1.0] * 5 and len(times) == 7
    assert min(times[1:]) - times[0] >= 0.9, "nobody asked before"
    assert all(verdict.effort.waited > 0.0 for verdict in said.values())


def test_while_one_endpoint_wants_to_be_left_alone_another_is_asked():
    limited = lambda body, number: Reply(429, headers={"Retry-After": "50"})  # noqa: E731
    with serving(limited) as first, serving(yes) as second:
        part = endpoint(first.url, fallbacks=[{"url": second.url}], max_concurrent_requests=1)
        said = verdicts(EndpointJudge(part), *map(item, range(4)))
    assert scores(said) == [1.0] * 4 and len(first.bodies) == 1
    assert all(verdict.effort.waited == 0.0 for verdict in said.values())


def test_a_request_that_is_only_told_to_wait_never_fails():
    """Several times as often as a request is retried, while others are answered: a limit says nothing of a response."""

    def answer(body, number):
        unlucky = "unlucky" in body["messages"][0]["content"]
        with lock:
            counts[unlucky] += 1
            return Reply(429) if unlucky and counts[unlucky] <= 6 else yes(body, number)

    lock = threading.Lock()
    counts = {True: 0, False: 0}
    with serving(answer) as server:
        part = endpoint(server.url, retries=1, backoff_seconds=0.001)
        said = verdicts(EndpointJudge(part), item(0, "unlucky"), item(1))
    assert not any(verdict.error for verdict in said.values())


def test_an_endpoint_that_only_says_wait_is_away_in_the_end():
    with serving(lambda body, number: Reply(429)) as server:
        part = endpoint(server.url, longest_wait_seconds=0.05, backoff_seconds=0.01)
        with pytest.raises(AwayError, match="429 for 0 s"):
            verdicts(EndpointJudge(part), item(1))


def test_what_waits_for_a_limit_has_not_failed_and_runs_share_it(tmp_path: Path, monkeypatch):
    signs = []
    monkeypatch.setattr(failover, "SIGN_SECONDS", 0.05)
    monkeypatch.setattr(failover, "advanced", signs.append)
    with serving(yes) as server:
        part = endpoint(server.url, requests_per_minute=60, retries=0)
        one = EndpointJudge(part, folder=tmp_path)
        other = EndpointJudge(part, folder=tmp_path)
        began = time.time()
        said = verdicts(one, *map(item, range(5)))
        assert scores(said) == [1.0] * 5 and not any(verdict.effort.waited for verdict in said.values())
        (shared,) = [each.shared for each in other._endpoints._each]
        assert shared.seen().requests_full_at >= began + 5.0, "the other run knows of them"
        shared.change(lambda state, now: setattr(state, "requests_full_at", now + BURST_SECONDS))
        said = verdicts(one, item(20))
        alone = verdicts(EndpointJudge(part), item(20))
    assert said[20].effort.waited > 0.5 and said[20].judgements[0].score == 1.0
    assert alone[20].effort.waited == 0.0
    assert len(signs) > 2 and f"until the limit of {server.url} allows a request" in signs[0]


def test_a_request_that_is_no_longer_needed_gives_its_place_back(tmp_path: Path):
    part = endpoint("http://127.0.0.1:9/v1", requests_per_minute=1)
    endpoints = EndpointJudge(part, folder=tmp_path)._endpoints
    (shared,) = [each.shared for each in endpoints._each]
    shared.change(lambda state, now: setattr(state, "requests_full_at", now + 30.0))
    before = shared.seen()
    stop = threading.Event()

    def ask():
        with pytest.raises(InfrastructureError, match="no longer needed"):
            endpoints.send(smallest_question(part), stop, JudgementMeter())

    waiting = threading.Thread(target=ask)
    waiting.start()
    while shared.seen() == before:
        time.sleep(0.005)
    stop.set()
    waiting.join()
    assert shared.seen().requests_full_at == pytest.approx(before.requests_full_at)


def test_tokens_are_counted_as_the_endpoint_counts_them(tmp_path: Path):
    """The estimate is a hundred times the truth: without the endpoint's count, the second request would wait for a minute."""
    with serving(yes) as server:
        part = endpoint(server.url, tokens_per_minute=2000, max_new_tokens=1900, max_concurrent_requests=1)
        judge = EndpointJudge(part, folder=tmp_path)
        said = verdicts(judge, item(1), item(2))
        (state,) = [each.shared.seen() for each in judge._endpoints._each]
    assert sum(verdict.effort.waited for verdict in said.values()) < 5.0
    assert state.tokens_full_at < time.time() + 5.0


def test_what_an_endpoint_refuses_is_named_with_the_option_that_changes_it():
    def answer(body, number):
        for field in ("max_tokens", "temperature"):
            if field in body:
                message = f"Unsupported parameter: '{field}'; use 'max_completion_tokens'. {KEY}"
                return Reply(400, {"error": {"message": message, "param": field, "code": "unsupported_parameter"}})
        return yes(body, number)

    with serving(answer) as server:
        with pytest.raises(
            ConfigurationError, match=r"max_tokens.*set max_tokens_field: max_completion_tokens"
        ) as caught:
            EndpointJudge(endpoint(server.url)).ask_once(item(1))
        assert KEY not in str(caught.value)
        part = endpoint(server.url, max_tokens_field="max_completion_tokens")
        with pytest.raises(ConfigurationError, match=r"temperature.*set send_temperature: false"):
            verdicts(EndpointJudge(part), item(1))
        part = endpoint(server.url, max_tokens_field="max_completion_tokens", send_temperature=False, max_new_tokens=7)
        assert scores(verdicts(EndpointJudge(part), item(1))) == [1.0]
    assert server.bodies[-1]["max_completion_tokens"] == 7
    assert not server.bodies[-1].keys() & {"max_tokens", "temperature"}


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "'seed' does not exist", "param": None}},
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"]}]},
        {"detail": "Error code: 400 - {'error': {'param': 'seed'}}"},
    ],
)
def test_a_refusal_is_understood_in_the_forms_that_servers_have(body):
    with (
        serving(lambda _, number: Reply(422, body)) as server,
        pytest.raises(ConfigurationError, match="seeded: false"),
    ):
        verdicts(EndpointJudge(endpoint(server.url, seeded=True)), item(1))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"seed"', b'{"error": "seed", "detail": 3}', b'{"error": {"param": {}}}']
)
def test_a_refusal_without_a_field_names_the_options_there_are(body):
    with (
        serving(lambda _, number: Reply(400, body)) as server,
        pytest.raises(ConfigurationError, match="max_tokens_field"),
    ):
        verdicts(EndpointJudge(endpoint(server.url, seeded=True)), item(1))


def test_a_check_asks_every_endpoint():
    with serving(yes) as first, serving(down) as second:
        part = endpoint(first.url, fallbacks=[{"url": second.url}])
        asked = EndpointJudge(part).ask_once(item(1))
        assert asked.verdict.judgements[0].score == 1.0
        assert (asked.url, asked.silent) == (first.url, (f"{second.url}: status 503",))
        with pytest.raises(InfrastructureError, match=rf"{second.url}: status 503"):
            EndpointJudge(endpoint(second.url)).ask_once(item(1))


def test_the_effort_of_a_verdict_counts_its_requests():
    def answer(body, number):
        return [Reply(500), Reply(429), Reply(body=b"{"), yes(body, number)][min(number, 3)]

    with serving(answer) as server:
        part = endpoint(server.url, prices={"prompt": 2.0, "completion": 10.0})
        (piece,) = list(EndpointJudge(part).judge(JudgeRequest((item(1),))))
    effort = piece[0].effort
    assert effort.outcomes == {"500": 1, "429": 1, "malformed": 1, "200": 1} and effort.retries == 3
    assert effort.cost == pytest.approx((11 * 2.0 + 3 * 10.0) / 1e6)
    assert len(effort.latencies) == 1 and 0.0 < effort.latencies[0] <= effort.seconds


def test_whether_a_judge_is_back_is_not_asked_while_it_wants_to_be_left_alone(monkeypatch):
    replies = [Reply(503), Reply(body=completion("1")), Reply(429, headers={"Retry-After": "30"})]
    with serving(lambda body, number: replies[number]) as server:
        judge = EndpointJudge(endpoint(server.url))
        assert [judge.answers() for _ in replies] == [False, True, False]
        assert judge.is_named(f"judge 'judge' at {server.url}") and not judge.is_named("judge 'judges' at x")
        monkeypatch.setattr(endpoint_judge, "LONGEST_LOOK_SECONDS", 0.01)
        assert judge.answers() is False
        assert len(server.bodies) == 3
    assert server.bodies[0]["max_tokens"] == 1
