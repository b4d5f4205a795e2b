"""A trainer over two hosts: its ranks meet at rank 0's address, listen nowhere else, and learn what one host learns."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.engines.train.groups import Found, Job, results_of, run_ranks, work_of
from tests.engines.train.layouts import CLIP, SEVERAL_STEPS, Layout, spec_of
from tests.engines.train.support import make_model_folder
from tests.hosts.network import Hosts
from tests.needs import NEEDS_MEGATRON
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, hold_address, meeting_host
from yatt_core.errors import InfrastructureError

SECONDS = 600


def test_ranks_meet_on_loopback_unless_they_are_on_several_nodes() -> None:
    assert meeting_host(["127.0.0.1"]) == meeting_host(["10.0.0.7", "10.0.0.7"]) == LOOPBACK
    assert meeting_host(["10.0.0.7", "10.0.0.9", "10.0.0.7"]) == "10.0.0.7"
    with pytest.raises(InfrastructureError, match=r"192\.0\.2\.1"):
        hold_address("192.0.2.1")


def test_ranks_on_two_hosts_sum_and_listen_only_on_their_own_addresses(two_hosts: Hosts, tmp_path: Path) -> None:
    rank = [sys.executable, "-m", "tests.hosts.meeting"]
    ranks = [
        host.start([*rank, str(number), str(tmp_path / "address"), two_hosts["h1"].address], stdout=subprocess.PIPE)
        for number, host in enumerate(two_hosts)
    ]
    found = [json.loads(each.communicate(timeout=SECONDS)[0]) for each in ranks]
    for host, one in zip(two_hosts, found, strict=True):
        assert one == {"sums": [3.0, 3.0], "listens": [host.address], "devices": ["eth0", "=eth0"]}
    assert (tmp_path / "address").read_text().startswith(f"tcp://{two_hosts['h1'].address}:")


TP2 = {"tensor_model_parallel_size": 2, "data_parallel_size": 1}


@pytest.mark.verify
@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param({"kind": "torch", "ranks": 2}, id="torch"),
        pytest.param({"kind": "fsdp2", "ranks": 2, "dtype": "float32"}, id="fsdp2"),
        pytest.param({"kind": "megatron", "dtype": "float32", **TP2}, id="megatron", marks=NEEDS_MEGATRON),
    ],
)
def test_two_hosts_learn_the_same_bits_as_one(engine: dict[str, object], two_hosts: Hosts, tmp_path: Path) -> None:
    layout = Layout(2, {**engine, "micro_batch_tokens": 60})
    job = Job(spec_of(layout.engine, CLIP, SEVERAL_STEPS), make_model_folder(tmp_path / "model"), (1, 2), rejoin_at=1)
    over_hosts = _run_over_hosts(two_hosts, replace(job, host=two_hosts["h1"].address), tmp_path / "hosts")
    (tmp_path / "here").mkdir()
    here = [found[0] for found in run_ranks(2, [job], tmp_path / "here")]
    for mine, other in zip(over_hosts, here, strict=True):
        assert [each.fingerprint for each in mine.receipts] == [each.fingerprint for each in other.receipts]
    assert here[0].receipts[0].fingerprint["weights_digest"]
    for name, weights in here[0].weights.items():
        np.testing.assert_array_equal(over_hosts[0].weights[name], weights)


def _run_over_hosts(hosts: Hosts, job: Job, folder: Path) -> list[Found]:
    folder.mkdir()
    (folder / "work.pickle").write_bytes(pickle.dumps(work_of([job], folder)))
    command = [sys.executable, "-m", "tests.hosts.rank"]
    ranks = [host.start([*command, str(rank), str(len(list(hosts))), str(folder)]) for rank, host in enumerate(hosts)]
    return [found[0] for found in results_of([each.wait(SECONDS) for each in ranks], folder)]
