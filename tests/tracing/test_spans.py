"""Spans and logs as a receiver gets them, and a caller's place as it travels with a call."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator

import pytest

from tests.tracing.receiver import Received, grpc_receiver, otlp_receiver
from yatt_core.tracing.calls import CallTerm, ReceivedTerm, call_term, traced_call
from yatt_core.tracing.identity import SpanPlace, attempt_place, iteration_place
from yatt_core.tracing.log_export import export_logs, keep_logs
from yatt_core.tracing.settings import TracingSettings
from yatt_core.tracing.spans import begin_tracing, current_place, end_tracing, span

ROOT = iteration_place("owner", 0, 3)


@pytest.fixture
def receiver() -> Iterator[Received]:
    with otlp_receiver() as received:
        yield received
        keep_logs()
        end_tracing(0.0)


def begin(receiver: Received) -> None:
    output = begin_tracing(TracingSettings(receiver.address, "http/protobuf"), {"yatt.run": "toy-1", "yatt.branch": 2})
    export_logs(output, "driver")


def test_identities_follow_from_what_they_name() -> None:
    assert iteration_place("owner", 0, 3) == ROOT != iteration_place("owner", 1, 3) != iteration_place("other", 1, 3)
    one = attempt_place(ROOT, "learn", 1)
    two = attempt_place(ROOT, "learn", 2)
    assert one.trace_id == two.trace_id == ROOT.trace_id and len({one, two, ROOT}) == 3
    assert 0 < ROOT.trace_id < 2**128 and 0 < ROOT.span_id < 2**64


def test_spans_nest_and_carry_their_resource_and_failure(receiver: Received) -> None:
    begin(receiver)
    with pytest.raises(KeyError), span("learn", ROOT, place=attempt_place(ROOT, "learn", 1), attributes={"count": 3}):
        with span("inner", kind="client"):
            pass
        raise KeyError("the text of a prompt")
    assert end_tracing(30.0) == 0
    (inner,) = receiver.named("inner")
    (outer,) = receiver.named("learn")
    assert inner.parent == outer.id and outer.parent == f"{ROOT.span_id:016x}"
    assert inner.trace == outer.trace == f"{ROOT.trace_id:032x}"
    assert outer.attributes == {"count": 3} and outer.failure == "KeyError", "no text of the error"
    assert (outer.resource["yatt.run"], outer.resource["yatt.branch"]) == ("toy-1", 2)
    assert {"host.name", "service.name"} <= outer.resource.keys()
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_logs_carry_the_span_in_which_they_were_written_and_no_secrets(receiver: Received) -> None:
    begin(receiver)
    log = logging.getLogger("yatt_core.flow")
    log.setLevel(logging.INFO)
    with span("learn", ROOT):
        log.info("token=hunter22 was used")
    logging.getLogger("third.party").error("not ours")
    end_tracing(30.0)
    ((text, trace, attributes),) = [line for line in receiver.logs if "was used" in line[0]]
    assert text == "token=*** was used" and trace == f"{ROOT.trace_id:032x}"
    assert attributes["yatt.logger"] == "yatt_core.flow"
    assert not any("not ours" in text for text, _, _ in receiver.logs)


def test_nothing_is_traced_and_a_term_is_a_plain_number_while_tracing_is_off() -> None:
    assert type(call_term(5)) is int
    with span("learn", ROOT) as opened:
        assert opened is None and current_place() is None
    assert type(pickle.loads(pickle.dumps(CallTerm(5)))) is int


def test_a_term_carries_the_callers_place_and_the_actor_continues_from_there(receiver: Received) -> None:
    begin(receiver)
    term = call_term(5)
    assert term == 5 and f"{term:04d}" == "0005"
    assert type(pickle.loads(pickle.dumps(term))) is int, "outside of a span there is nothing to carry"
    with span("learn", ROOT) as caller:
        sent = pickle.dumps({"task": term})
    received = pickle.loads(sent)["task"]
    assert isinstance(received, ReceivedTerm) and received == 5
    with traced_call("trainer-3", "learn", received):
        onward = pickle.loads(pickle.dumps(received))
    end_tracing(30.0)
    (served,) = receiver.named("trainer.learn")
    assert caller is not None and served.parent == f"{caller.place.span_id:016x}"
    assert served.attributes == {"yatt.actor": "trainer-3", "yatt.term": 5}
    assert onward.place == SpanPlace(int(served.trace, 16), int(served.id, 16)), "calls of the actor hang on its span"


def test_a_receiver_that_refuses_costs_nothing_but_the_spans(receiver: Received) -> None:
    receiver.status = 400
    begin(receiver)
    for _ in range(10):
        with span("learn", ROOT):
            pass
    assert end_tracing(30.0) >= 10
    assert receiver.spans == [] and receiver.requests <= 4


def test_the_same_arrives_by_grpc() -> None:
    with grpc_receiver() as received:
        begin_tracing(TracingSettings(received.address, "grpc"), {"yatt.run": "toy-1"})
        with span("learn", ROOT):
            pass
        assert end_tracing(30.0) == 0
        (sent,) = received.spans
        assert (sent.name, sent.resource["yatt.run"]) == ("learn", "toy-1")
