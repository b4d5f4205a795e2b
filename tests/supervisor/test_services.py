"""The restart state machine on a simulated clock, and refused service specs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from yatt_core.errors import ConfigurationError
from yatt_core.supervisor.services import RestartPolicy, ServiceLife, ServiceSpec, ServiceState, fill

policies = st.builds(
    RestartPolicy,
    first_delay=st.floats(0.1, 2.0),
    max_delay=st.floats(2.0, 20.0),
    max_deaths=st.integers(0, 6),
    window=st.floats(1.0, 200.0),
)


@settings(max_examples=examples(200), deadline=None)
@given(policies, st.booleans(), st.lists(st.tuples(st.floats(0.0, 60.0), st.booleans()), max_size=40))
def test_restarts_keep_the_back_off_and_the_budget(policy, restart, events):
    """Each event: some seconds pass, then the service becomes ready or dies, as its state allows."""
    life = ServiceLife()
    now = 0.0
    deaths = []
    starts = 0
    vain = 0
    for seconds, becomes_ready in events:
        now += seconds
        if life.is_due(now):
            if deaths:
                recent = [at for at in deaths if at > deaths[-1] - policy.window]
                wanted = min(policy.first_delay * 2 ** (max(len(recent), vain) - 1), policy.max_delay)
                assert now >= deaths[-1] + wanted
            life = life.started(now)
            starts = starts + 1
        elif life.is_running():
            if becomes_ready and life.state is ServiceState.STARTING:
                life = life.became_ready()
            else:
                deaths.append(now)
                vain = vain + 1 if life.state is ServiceState.STARTING else 0
                life = life.died(now, "killed", policy, restart)
        in_window = [at for at in deaths if at > (deaths[-1] if deaths else 0.0) - policy.window]
        gone_for_good = bool(deaths) and (not restart or max(len(in_window), vain) > policy.max_deaths)
        assert (life.state is ServiceState.FAILED) == gone_for_good
        if gone_for_good:
            assert not life.is_due(now + 1e9)
            break
    assert life.starts == starts
    assert starts - len(deaths) == int(life.is_running())


def test_back_off_doubles_up_to_its_bound():
    policy = RestartPolicy(first_delay=0.5, max_delay=3.0)
    assert [policy.delay(n) for n in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert policy.delay(10_000) == 3.0


def test_a_service_that_is_slow_to_die_is_given_up_too():
    policy = RestartPolicy(max_deaths=3, window=60.0)
    life = ServiceLife()
    now = 0.0
    for _ in range(3):
        now += 200.0
        life = life.started(now - 100.0).died(now, "no database", policy, True)
        assert life.state is ServiceState.WAITING
    ready = life.started(now + 100.0).became_ready().died(now + 200.0, "killed", policy, True)
    assert ready.state is ServiceState.WAITING, "a service that was ready has its full budget again"
    given_up = life.started(now + 100.0).died(now + 200.0, "no database", policy, True)
    assert given_up.reason == "no database; gave up after 4 deaths in a row, never ready"


def test_impossible_events_are_refused():
    policy = RestartPolicy()
    fresh = ServiceLife()
    with pytest.raises(ValueError, match=r"died .*\bwaiting\b"):
        fresh.died(0.0, "", policy, True)
    with pytest.raises(ValueError, match=r"ready .*\bwaiting\b"):
        fresh.became_ready()
    waiting = fresh.started(0.0).died(0.0, "", policy, True)
    with pytest.raises(ValueError, match=r"due at 0\.5"):
        waiting.started(0.1)


def test_ended_on_purpose_is_distinct_from_failed():
    running = ServiceLife().started(0.0)
    assert running.ended().state is ServiceState.ENDED
    assert running.died(0.0, "x", RestartPolicy(), False).ended().state is ServiceState.FAILED


def test_ports_are_named_and_filled_everywhere():
    spec = ServiceSpec(
        "s", ("x", "--p={port}", "{port_client}"), {"A": "{port_metrics}"}, "tcp://127.0.0.1:{port}", "l"
    )
    assert spec.port_names() == ("port", "port_client", "port_metrics")
    assert fill("{port} {port_client} {other}", {"port": 1, "port_client": 2}) == "1 2 {other}"


@pytest.mark.parametrize(("argv", "ready", "match"), [((), "log:x", "argv is empty"), (("x",), "udp://x", "http://")])
def test_bad_specs_are_refused(argv, ready, match):
    with pytest.raises(ConfigurationError, match=match):
        ServiceSpec("s", argv, {}, ready, "l")
