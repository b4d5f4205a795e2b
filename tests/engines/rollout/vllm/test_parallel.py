"""One engine over two devices: the same tokens as on one, new weights in each worker, and nothing left after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.engines.rollout.cases import MAX_NEW, build_model, prompts_of, request_of, rows_of, vllm_case_of, weights_of
from tests.engines.rollout.served.test_process import is_gone
from tests.engines.rollout.vllm.reference import largest_gap, module_with
from tests.needs import NEEDS_VLLM
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import buckets_of

pytestmark = [NEEDS_VLLM, pytest.mark.verify]
SMALL = 1e-4
OWNER = """
import sys, time
from pathlib import Path
from tests.engines.rollout.cases import vllm_case_of
case = vllm_case_of(Path(sys.argv[1]), tensor_parallel_size=2)
print(case.engine._core.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def paired_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "paired"
    build_model(folder, "paired")
    return folder


@pytest.fixture(scope="module")
def pair(paired_folder):
    """Returns an engine over two devices."""
    case = vllm_case_of(paired_folder, tensor_parallel_size=2)
    yield case
    case.engine.close()


def batch(version: int):
    return request_of(prompts_of([200, 37, 130, 9, 1]), samples=4, max_new_tokens=MAX_NEW, weight_version=version)


def test_two_devices_give_the_tokens_of_one_after_each_update(pair, paired_folder):
    single = vllm_case_of(paired_folder)
    for version in (0, 1, 2):
        for case in (pair, single):
            case.engine.begin_update(version)
            for bucket in buckets_of(weights_of(paired_folder, version).items(), 20_000):
                case.engine.take(bucket)
            case.engine.end_update()
        both, one = (case.engine.generate(batch(version)) for case in (pair, single))
        assert both.tokens.tolist() == one.tokens.tolist()
        assert np.abs(both.log_probs - one.log_probs).max() < SMALL
        assert largest_gap(module_with(paired_folder, weights_of(paired_folder, version)), batch(version), both) < SMALL
    single.engine.close()


def test_a_response_does_not_depend_on_its_batch(pair):
    pair.engine.update_weights(pair.weights(0), 0)
    assert pair.engine.capabilities["batch_invariant"]
    prompts = prompts_of([200, 37, 130, 9, 1, 64, 65, 12])
    seeds = np.arange(8, dtype=np.uint64)[:, None]
    whole = rows_of(pair.engine.generate(request_of(prompts, seeds=seeds, max_new_tokens=MAX_NEW)))
    for row in range(8):
        alone = request_of([prompts[row]], seeds=seeds[row : row + 1], max_new_tokens=MAX_NEW)
        assert rows_of(pair.engine.generate(alone)) == [whole[row]]


def test_the_loss_of_a_worker_is_reported(paired_folder):
    case = vllm_case_of(paired_folder, tensor_parallel_size=2)
    case.engine.update_weights(case.weights(0), 0)
    (worker, *_) = [each for each in psutil.Process(case.engine._core.pid).children() if "Worker" in each.name()]
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="vLLM"):
        for _ in range(100):
            case.engine.generate(batch(0))
    assert case.engine.is_lost and is_gone(case.engine._core.pid)


def test_nothing_is_left_of_an_engine_whose_actor_was_killed(paired_folder):
    before = {path.name for place in ("/dev/shm", tempfile.gettempdir()) for path in Path(place).iterdir()}
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(paired_folder)], stdout=subprocess.PIPE, text=True)
    with owner.stdout as output:
        engine = int(output.readline())
        processes = [engine, *(each.pid for each in psutil.Process(engine).children(recursive=True))]
        assert len(processes) >= 3
        owner.kill()
        owner.wait()
    assert all(is_gone(pid) for pid in processes)
    after = {path.name for place in ("/dev/shm", tempfile.gettempdir()) for path in Path(place).iterdir()}
    assert not {name for name in after - before if "vllm" in name or name.startswith(("psm_", "sem."))}
