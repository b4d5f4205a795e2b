"""Calls on a real cluster: bytes are counted, waits are bounded, errors are unwrapped."""

from __future__ import annotations

import os
import pickle
import threading
import time

import pytest
import ray

from yatt_core.cluster.metering import BytesMeter, metered_get
from yatt_core.errors import ConfigurationError, InfrastructureError, LostActorError, NumericError

pytestmark = pytest.mark.usefixtures("connected")


@ray.remote(num_cpus=0)
class Worker:
    def echo(self, value):
        return value

    def fail(self, error):
        raise error

    def fail_below(self, worker, error):
        return ray.get(worker.fail.remote(error))

    def sleep(self):
        time.sleep(600)

    def die(self):
        os._exit(1)


@pytest.fixture(scope="module")
def workers(connected):
    handles = [Worker.options(name=f"worker-{number}").remote() for number in range(2)]
    yield handles
    for handle in handles:
        ray.kill(handle)


@pytest.fixture
def mortal(connected):
    handle = Worker.options(name="mortal").remote()
    yield handle
    ray.kill(handle)


def test_bytes_of_all_values_are_counted(workers):
    meter = BytesMeter()
    small = "x"
    large = b"y" * 100_000
    assert metered_get(meter, [w.echo.remote(v) for w, v in zip(workers, (small, large), strict=True)], 30, "echo") == [
        small,
        large,
    ]
    expected = sum(len(pickle.dumps(value, protocol=5)) for value in (small, large))
    assert abs(meter.total - expected) < 200
    before = meter.total
    metered_get(meter, [workers[0].echo.remote(large)], 30, "echo")
    assert meter.total - before >= 100_000


def test_meter_loses_nothing_between_threads():
    meter = BytesMeter()
    threads = [threading.Thread(target=lambda: [meter.add(1) for _ in range(20_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.total == 80_000


@pytest.mark.parametrize(
    "error", [NumericError("loss is nan in step 3"), ConfigurationError("model.path: no such folder")]
)
def test_our_errors_arrive_as_themselves(workers, error):
    for reference in (workers[0].fail.remote(error), workers[1].fail_below.remote(workers[0], error)):
        with pytest.raises(type(error)) as caught:
            metered_get(BytesMeter(), [reference], 30, "learn")
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)


def test_other_errors_keep_their_remote_traceback(workers):
    with pytest.raises(ZeroDivisionError, match="in fail"):
        metered_get(BytesMeter(), [workers[0].fail.remote(ZeroDivisionError("by hand"))], 30, "learn")


def test_timeout_names_what_was_waited_for(mortal):
    with pytest.raises(InfrastructureError, match=r"^shard 3 by controller 1: .*\b0\.2 s"):
        metered_get(BytesMeter(), [mortal.sleep.remote()], 0.2, "shard 3 by controller 1")


def test_first_failure_is_raised_without_waiting_for_the_slowest(workers, mortal):
    references = [mortal.sleep.remote(), workers[0].fail.remote(NumericError("rank 1"))]
    began = time.monotonic()
    with pytest.raises(NumericError, match="rank 1"):
        metered_get(BytesMeter(), references, 60, "the ranks")
    assert time.monotonic() - began < 20


def test_dead_actor_is_an_infrastructure_error_that_names_it(mortal):
    with pytest.raises(LostActorError, match=r"(?s)^learn on rank 0: .*Worker"):
        metered_get(BytesMeter(), [mortal.die.remote()], 30, "learn on rank 0")
