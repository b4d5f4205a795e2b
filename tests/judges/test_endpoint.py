"""A third-party endpoint: the requests it gets, and how its answers and failures are handled."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from tests.judges.parts import endpoint, item, verdicts
from tests.judges.server import KEY, Reply, completion, serving
from tests.waiting import wait_until
from yatt_core.errors import AwayError, ConfigurationError, InfrastructureError
from yatt_core.judges.endpoint import EndpointJudge
from yatt_core.judges.registry import build_judge
from yatt_core.judges.retrying import asked_seconds, meaning_of, wait_before
from yatt_core.protocols.judges import JudgeRequest, aggregate


def says(text):
    return lambda body, number: Reply(body=completion(text))


ANSWER = Reply(body=completion("yes"))


def after(failures, text="yes"):
    """Returns a script that replies with each failure in turn, and then always with the answer."""
    return lambda body, number: failures[number] if number < len(failures) else Reply(body=completion(text))


def test_every_judgement_is_asked_for_and_answers_are_parsed():
    def answer(body, number):
        return Reply(body=completion("Yes." if "right one" in body["messages"][0]["content"] else "no"))

    with serving(answer) as server:
        part = endpoint(server.url, judgements=3, seeded=True, temperature=0.7, max_new_tokens=5)
        judge = build_judge(part, None)
        items = [item(4, "right one", judgements=3), item(7, "{answer} {prompt}", judgements=3)]
        said = verdicts(judge, *items)
    assert [judgement.score for judgement in said[4].judgements] == [1.0] * 3
    assert aggregate(part, said[7]).value == 0.0
    assert {(j.answer, j.tokens, j.prompt_tokens) for j in said[4].judgements} == {("Yes.", 3, 11)}
    assert len(server.bodies) == 6
    assert {body["seed"] for body in server.bodies} == {4000, 4001, 4002, 7000, 7001, 7002}
    first = next(body for body in server.bodies if body["seed"] == 7000)
    assert first["messages"] == [{"role": "user", "content": "Is the answer right? sun {answer} {prompt}"}]
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.7, 5)
    assert {headers["path"] for headers in server.headers} == {"/v1/chat/completions"}
    assert judge.capabilities == {"deterministic": True, "batch_invariant": True}


def test_an_endpoint_that_is_not_seeded_gets_no_seed():
    with serving(says("no")) as server:
        judge = EndpointJudge(endpoint(server.url))
        verdicts(judge, item(1))
    assert "seed" not in server.bodies[0] and "Authorization" not in server.headers[0]
    assert not judge.capabilities["deterministic"]


def test_the_key_comes_from_the_environment_and_shows_in_no_message(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    refusal = Reply(401, {"error": f"bad key {KEY}"})
    with serving(lambda body, number: refusal if number else Reply(body=completion("yes"))) as server:
        judge = EndpointJudge(endpoint(server.url, credential={"env": "JUDGE_KEY"}))
        verdicts(judge, item(1))
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
        with pytest.raises(ConfigurationError, match=r"401 .*JUDGE_KEY") as caught:
            verdicts(judge, item(1))
        assert len(server.bodies) == 2, "a refusal is not asked again"
    assert KEY not in str(caught.value) and KEY not in repr(judge.__dict__)


@pytest.mark.parametrize("value", [None, "", "two\nlines"])
def test_a_key_that_is_not_there_is_said_before_anything_is_asked(monkeypatch, value):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("JUDGE_KEY", value)
    with pytest.raises(ConfigurationError, match="JUDGE_KEY"):
        EndpointJudge(endpoint("https://judge.example/v1", credential={"env": "JUDGE_KEY"}))


def test_what_stays_on_this_machine_goes_through_no_proxy(monkeypatch):
    with serving(says("yes")) as server, serving(says("no")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        said = verdicts(EndpointJudge(endpoint(server.url)), item(1))
    assert said[1].judgements[0].score == 1.0 and not proxy.bodies


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", "ftp://user:secret@proxy"),
        ("ALL_PROXY", "http://proxy:secret"),
        ("SSL_CERT_FILE", "/no/such/secret"),
    ],
)
def test_an_environment_that_allows_no_connection_is_said_without_its_passwords(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=rf"rewards.parts 'judge': .*{variable}") as caught:
        EndpointJudge(endpoint("https://judge.example/v1"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "failures",
    [
        [Reply(503), Reply(500)],
        [Reply(429, headers={"Retry-After": "0"})],
        [Reply(408), Reply(409)],
        [Reply(body=b"{not json"), Reply(body={"choices": []}), Reply(body=[1])],
        [Reply(body=b"[" * 200_000)],
    ],
    ids=["server errors", "too many requests", "conflicts", "malformed", "bottomless"],
)
def test_what_may_pass_is_tried_again(failures):
    with serving(after(failures)) as server:
        said = verdicts(EndpointJudge(endpoint(server.url)), item(1))
        assert len(server.bodies) == len(failures) + 1
    assert said[1].judgements[0].score == 1.0


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(503), ".*503, 3 times"),
        (Reply(body=b"<html>"), r".*chat completion \(JSONDecodeError\), 3 times"),
        (
            Reply(body=b"yes", headers={"Content-Encoding": "gzip"}),
            ".*Content-Encoding, 3 times",
        ),
    ],
)
def test_an_endpoint_that_answers_nothing_is_away_for_a_reason(reply, reason):
    with serving(lambda body, number: reply) as server:
        judge = EndpointJudge(endpoint(server.url, retries=2))
        with pytest.raises(AwayError, match=rf"judge 'judge' at {server.url} is away: {reason}") as caught:
            verdicts(judge, item(1))
        assert len(server.bodies) == 3 + 1, "at last, whether it answers anything"
    assert caught.value.dependency == f"judge 'judge' at {server.url}"


def test_a_request_that_fails_while_others_are_answered_has_failed_alone():
    def answer(body, number):
        poisonous = "poison" in body["messages"][0]["content"]
        return Reply(500) if poisonous else Reply(body=completion("yes"))

    with serving(answer) as server:
        part = endpoint(server.url, retries=2, backoff_seconds=0.01)
        together = verdicts(EndpointJudge(part), *(item(n, "poison" if n == 3 else "fine") for n in range(6)))
        alone = verdicts(EndpointJudge(part), item(3, "poison"))
    assert {number for number, said in together.items() if said.error} == {3}
    for said in (together[3], alone[3]):
        assert said.error.startswith("infrastructure: ") and "status 500, 4 times" in said.error
        assert aggregate(part, said).cause == "infrastructure"
    assert together[0].judgements[0].score == 1.0


def test_where_a_third_of_requests_fail_every_item_is_judged():
    with serving(lambda body, number: Reply(503) if number % 3 == 0 else Reply(body=completion("yes"))) as server:
        said = verdicts(EndpointJudge(endpoint(server.url, backoff_seconds=0.01)), *map(item, range(20)))
    assert not any(verdict.error for verdict in said.values()) and len(said) == 20


def test_what_an_outage_hits_just_after_an_answer_is_asked_again_and_judged():
    """The outage outlasts the retries, but nothing is known yet: an item that failed would be masked for nothing."""
    ends = time.monotonic() + 1.5

    def answer(body, number):
        away = number >= 2 and time.monotonic() < ends
        return Reply(503) if away else Reply(body=completion("yes"))

    with serving(answer) as server:
        part = endpoint(server.url, retries=1, backoff_seconds=0.05, max_concurrent_requests=2)
        said = verdicts(EndpointJudge(part), *map(item, range(8)))
    assert len(said) == 8 and not any(verdict.error for verdict in said.values())


def test_a_request_that_is_open_counts_neither_as_an_answer_nor_as_a_failure():
    release = threading.Event()

    def answer(body, number):
        if "open" in body["messages"][0]["content"]:
            return Reply(body=completion("yes"), hold=release)
        return Reply(body=completion("yes")) if release.is_set() else Reply(503)

    with serving(answer) as server, ThreadPoolExecutor(2) as pool:
        judge = EndpointJudge(endpoint(server.url, retries=9, backoff_seconds=0.01))
        try:
            opened = pool.submit(verdicts, judge, item(1, "open"), item(2, "open"))
            wait_until(lambda: server.under_way == 2)
            assert not judge._availability.is_away(time.monotonic() + 1e6), "what is open has not failed"
            failing = pool.submit(verdicts, judge, item(3))
            wait_until(lambda: judge._availability.is_away(time.monotonic()), seconds=10.0)
            assert not opened.done(), "what is open has not been answered"
        finally:
            release.set()
        said = opened.result() | failing.result()
    assert [said[number].error for number in (1, 2, 3)] == ["", "", ""]


def test_an_endpoint_that_refuses_the_smallest_question_is_there():
    def answer(body, number):
        return Reply(400) if body["max_tokens"] == 1 else Reply(500)

    with serving(answer) as server:
        said = verdicts(EndpointJudge(endpoint(server.url, retries=0)), item(1))
    assert said[1].error.startswith("infrastructure: ")


def test_an_endpoint_that_wants_to_be_left_alone_for_long_is_out_of_reach():
    with serving(lambda body, number: Reply(429, headers={"Retry-After": "3600"})) as server:
        judge = EndpointJudge(endpoint(server.url))
        with pytest.raises(InfrastructureError, match=r"429.* 3600 s"):
            verdicts(judge, item(1))
        assert len(server.bodies) == 1


def test_an_answer_that_does_not_come_is_a_timeout():
    never = threading.Event()
    with serving(lambda body, number: Reply(hold=never)) as server:
        judge = EndpointJudge(endpoint(server.url, timeout_seconds=0.1, retries=1))
        with pytest.raises(InfrastructureError, match=r"0\.1 s, 2 times"):
            verdicts(judge, item(1))
        never.set()


@pytest.mark.parametrize(
    "parts",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: "],
)
def test_an_answer_that_comes_in_drops_is_a_timeout_too(parts):
    drop = parts if parts.startswith(b"HTTP/1.1 100") else b" "

    def drip(listening):
        listening.settimeout(10)  # on a busy machine, the client may time out before it has connected
        with contextlib.suppress(OSError), listening.accept()[0] as connection:
            connection.sendall(parts)
            for _ in range(300):  # after that the connection would be closed, which is a different error
                time.sleep(0.02)
                connection.sendall(drop)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=(listening,), daemon=True)
        dripping.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with pytest.raises(InfrastructureError, match=r"0\.2 s, 1 times"):
            verdicts(EndpointJudge(endpoint(url, timeout_seconds=0.2, retries=0)), item(1))
        dripping.join()


def test_a_name_that_is_no_punycode_is_no_address():
    with pytest.raises(ConfigurationError, match=r"rewards\.parts .judge.: url: https://xn--/v1 "):
        EndpointJudge(endpoint("https://xn--/v1"))


def test_an_endpoint_that_is_not_there_cannot_be_reached():
    with serving(says("yes")) as server:
        gone = server.url
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        verdicts(EndpointJudge(endpoint(gone, retries=1)), item(1))


@pytest.mark.parametrize(
    ("status", "hint"), [(400, "check url, model 'm'"), (404, "check url and model 'm'"), (302, "moved")]
)
def test_what_never_passes_is_a_configuration_error_at_once(status, hint):
    refusal = Reply(status, {"error": "no"})
    with serving(lambda body, number: refusal) as server, pytest.raises(ConfigurationError, match=hint) as caught:
        verdicts(EndpointJudge(endpoint(server.url)), item(1))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "it goes from the actor to the driver"
    # Status 400 may be about one request's text: a short one with the same settings tells.
    assert [body["messages"][0]["content"] for body in server.bodies[1:]] == (["1"] if status == 400 else [])
    assert {body["max_tokens"] for body in server.bodies} == {server.bodies[0]["max_tokens"]}


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_question_that_is_refused_for_its_text_fails_alone(status):
    def answer(body, number):
        refused = "long" in body["messages"][0]["content"]
        return (
            Reply(status, {"error": {"message": "too long", "code": "context_length_exceeded"}}) if refused else ANSWER
        )

    with serving(answer) as server:
        said = verdicts(EndpointJudge(endpoint(server.url)), item(1, "long"), item(2))
    assert said[1].error.startswith("data: ") and f"status {status}, unlike a short question" in said[1].error
    assert said[1].judgements == () and said[2].judgements[0].score == 1.0


def test_a_refusal_is_not_judged_while_nothing_else_is_answered():
    """The question is refused, and the endpoint fails before it can be seen whether the refusal is about its text."""
    script = [Reply(400, {"error": "no"}), Reply(503), ANSWER]
    with serving(lambda body, number: script[number]) as server:
        said = verdicts(EndpointJudge(endpoint(server.url)), item(1))
    assert said[1].judgements[0].score == 1.0 and len(server.bodies) == 3


def test_no_more_requests_are_under_way_than_allowed():
    full = threading.Event()

    def answer(body, number):
        if number == 2:
            threading.Timer(0.2, full.set).start()  # Long enough for a fourth request to arrive.
        return Reply(body=completion("yes"), hold=full)

    with serving(answer) as server:
        said = verdicts(EndpointJudge(endpoint(server.url, max_concurrent_requests=3)), *[item(n) for n in range(9)])
    assert len(said) == 9 and server.busiest == 3


def test_a_question_that_a_lost_controller_has_open_is_asked_once():
    """Its batch goes on, and waits for the next attempt while the same question comes from who takes over the shard."""
    refused = threading.Event()

    def answer(body, number):
        refused.set()
        return Reply(status=503) if number == 0 else Reply(body=completion("yes"))

    with serving(answer) as server:
        judge = EndpointJudge(endpoint(server.url, retries=3, backoff_seconds=0.5))
        with ThreadPoolExecutor(1) as elsewhere:
            of_the_lost = elsewhere.submit(verdicts, judge, item(4))
            assert refused.wait(10)
            again = verdicts(judge, item(4))
            assert of_the_lost.result(10) == again and again[4].judgements[0].score == 1.0
        assert len(server.bodies) == 2, "one attempt that failed, and one that was answered"
        assert verdicts(judge, item(4), item(5)).keys() == {4, 5} and len(server.bodies) == 4, "later it is asked anew"


def test_a_question_that_its_asker_gives_up_is_asked_by_who_waits_for_it():
    refused = threading.Event()

    def answer(body, number):
        if "other" in body["messages"][0]["content"]:
            return Reply(body=completion("yes"))
        first = not refused.is_set()
        refused.set()
        return Reply(status=503) if first else Reply(body=completion("yes"))

    with serving(answer) as server:
        judge = EndpointJudge(endpoint(server.url, retries=3, backoff_seconds=60.0))
        given_up = judge.judge(JudgeRequest((item(3, "other"), item(4))))
        assert [verdict.number for verdict in next(given_up)] == [3]
        assert refused.wait(10)
        with ThreadPoolExecutor(1) as elsewhere:
            waiting = elsewhere.submit(verdicts, judge, item(4))
            time.sleep(0.5)  # long enough to begin to wait
            assert not waiting.done() and len(server.bodies) == 2, "it waits, and has sent nothing"
            given_up.close()
            assert waiting.result(30).keys() == {4}
    assert len(server.bodies) == 3


def test_verdicts_come_as_they_are_complete():
    slow = threading.Event()

    def answer(body, number):
        return Reply(body=completion("yes"), hold=slow if "slow" in body["messages"][0]["content"] else None)

    with serving(answer) as server:
        judge = EndpointJudge(endpoint(server.url))
        pieces = judge.judge(JudgeRequest((item(1, "slow"), item(2))))
        assert [verdict.number for verdict in next(pieces)] == [2]
        slow.set()
        assert [verdict.number for piece in pieces for verdict in piece] == [1]


@pytest.mark.parametrize(
    ("reason", "cut", "score"),
    [("stop", False, 10.0), ("length", True, None), ("eos", False, 10.0), (None, False, 10.0)],
)
def test_an_answer_that_ends_at_its_limit_is_cut(reason, cut, score):
    """Its score is its last number, which more of the answer could have changed."""
    reply = completion("8, and after all 10")
    reply["choices"][0]["finish_reason"] = reason
    with serving(lambda body, number: Reply(body=reply)) as server:
        parse = {"kind": "number", "minimum": 0, "maximum": 10, "take": "last"}
        part = endpoint(server.url, parse=parse)
        said = verdicts(EndpointJudge(part), item(1))[1]
    (judgement,) = said.judgements
    assert (judgement.cut, judgement.score) == (cut, score)
    value = aggregate(part, said)
    assert (value.cause, value.absent) == (("cut", True) if cut else ("", False))


def test_an_item_that_cannot_be_judged_fails_alone():
    def answer(body, number):
        withheld = "withheld" in body["messages"][0]["content"]
        reply = completion(None if withheld else "yes")
        reply["choices"][0]["finish_reason"] = "content_filter" if withheld else "stop"
        return Reply(body=reply)

    with serving(answer) as server:
        part = endpoint(server.url, template="{answer}: {response}")
        said = verdicts(EndpointJudge(part), item(1), item(2, "withheld"), item(3, answer=None))
    assert said[1].error == ""
    assert said[2].error.startswith("data: ") and "(finish_reason 'content_filter')" in said[2].error
    assert said[3].error.startswith("data: ") and "{answer}" in said[3].error
    assert aggregate(part, said[2]).reason == said[2].error


def test_of_several_failures_of_an_item_the_first_judgements_is_told_whichever_comes_first():
    second_is_there = threading.Event()

    def answer(body, number):
        reply = completion(None)
        reply["choices"][0]["finish_reason"] = f"filter {body['seed']}"
        return Reply(body=reply, hold=second_is_there if body["seed"] == 1000 else None)

    with serving(answer) as server:
        pieces = EndpointJudge(endpoint(server.url, judgements=2, seeded=True)).judge(
            JudgeRequest((item(1, judgements=2),))
        )
        assert next(pieces) == (), "one of two has come"
        second_is_there.set()
        ((verdict,),) = list(pieces)
    assert verdict.error.startswith("data: ") and "(finish_reason 'filter 1000')" in verdict.error


@pytest.mark.parametrize("count", [2**31, -1, 1.5, True, "3"])
def test_a_count_of_tokens_that_is_none_is_not_believed(count):
    reply = completion("yes", usage={"completion_tokens": count, "prompt_tokens": 2**31 - 1})
    with serving(lambda body, number: Reply(body=reply)) as server:
        (judgement,) = verdicts(EndpointJudge(endpoint(server.url)), item(1))[1].judgements
    assert (judgement.tokens, judgement.prompt_tokens) == (0, 2**31 - 1)


def test_half_a_surrogate_pair_can_be_kept():
    body = b'{"choices": [{"message": {"content": "yes \\ud800"}}]}'
    with serving(lambda _, number: Reply(body=body)) as server:
        said = verdicts(EndpointJudge(endpoint(server.url)), item(1))
    judgement = said[1].judgements[0]
    assert judgement.answer.encode() == b"yes ?" and (judgement.tokens, judgement.prompt_tokens) == (0, 0)


def test_waits_grow_up_to_a_bound():
    part = endpoint("https://a.example", backoff_seconds=1.0, longest_wait_seconds=10.0)
    assert [wait_before(part, attempt) for attempt in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_retry_after_is_seconds_or_a_date():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert asked_seconds("7", now) == 7.0
    assert asked_seconds("Thu, 01 Jan 2026 00:00:30 GMT", now) == 30.0
    assert asked_seconds("Wed, 31 Dec 2025 00:00:00 GMT", now) == 0.0
    no_dates = ("soon", "-3", "Thu, 01 Jan 99999999999999999999 00:00:00 GMT")
    assert [asked_seconds(text, now) for text in (None, *no_dates)] == [None] * 4


def test_what_statuses_mean():
    assert [meaning_of(status) for status in (200, 429, 500, 599)] == ["fine", "passing", "passing", "passing"]
    assert {meaning_of(status) for status in (301, 400, 401, 403, 404, 422)} == {"refused"}
