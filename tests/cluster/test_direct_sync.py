"""Weights go directly from real ranks to real engines; whoever is lost or hangs meanwhile is named and replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.cluster.run_actors import ROOT, DriverBeat, actors_of, batch_of, pid_of
from tests.needs import NEEDS_PEFT
from tests.waiting import wait_until
from yatt_core.errors import LostActorError, ReplayError, StuckError
from yatt_core.run_actors.actor_registry import TRAINER
from yatt_core.run_actors.instances import ROLLOUT
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.spec import load_spec

pytestmark = pytest.mark.verify
NAMESPACE = "direct"
LORA = "trainer.lora={{rank: 2, targets: [q_proj, down_proj], sync: {}}}"
MEETING = "trainer-0 to serve a meeting"
SENDING = "the trainer's ranks to send and the rollout engines to receive weights"
COUNTS = ("rollout.engine.instances=2", "trainer.engine.ranks=2", "trainer.sync_bucket_bytes=4096")


def started(actor_sets: list[RunActors], folder: Path, *overrides: str) -> RunActors:
    """Returns actors whose ranks hold version 0."""
    spec = load_spec(ROOT / "tests" / "specs" / "torch.yaml", [*COUNTS, *overrides])
    actor_sets.append(actors := actors_of(spec, folder, 1))
    actors.start()
    actors.load(actors.materialise())
    return actors


def strike_while_sending(actors: RunActors, name: str, blow: signal.Signals) -> None:
    """Has an actor get a signal once the driver has asked all actors to take part in a transfer.

    It stands still from the meeting on, so that the transfer cannot be over before.
    """
    get = actors._calls.get
    seen = set[str]()

    def striking(references: list[Any], what: str, *arguments: Any, **named: Any) -> list[Any]:
        first = what not in seen
        seen.add(what)
        if what == SENDING and first:
            pid = pid_of(name)
            os.kill(pid, blow)
            if blow == signal.SIGKILL:
                wait_until(lambda: not Path(f"/proc/{pid}").exists())
        answers = get(references, what, *arguments, **named)
        if what == MEETING and first:
            os.kill(pid_of(name), signal.SIGSTOP)
        return answers

    actors._calls.get = striking  # type: ignore[method-assign]


@pytest.mark.parametrize("lost", ["rollout-1", "trainer-0", "trainer-1"])
def test_an_actor_that_is_killed_is_named_and_all_engines_are_synced_again(
    actor_sets: list[RunActors], tmp_path: Path, lost: str
) -> None:
    with DriverBeat(1):
        actors = started(actor_sets, tmp_path)
        strike_while_sending(actors, lost, signal.SIGKILL)
        with pytest.raises(LostActorError, match=lost):
            actors.sync(0)
        created = actors.start()
        assert set(created) == ({"trainer-0", "trainer-1"} if lost.startswith("trainer") else {lost})
        actors.load(actors.materialise())
        receipts = {receipt.instance: receipt for receipt in actors.sync(0)}
        assert all(receipt.bytes for receipt in receipts.values())
        assert 1 in receipts and not actors.sync(0)
        actors.check_weights(0, None)
        with pytest.raises(ReplayError, match="version 0"):
            actors.check_weights(0, "0" * 64)


def test_an_engine_that_hangs_is_named(actor_sets: list[RunActors], tmp_path: Path) -> None:
    with DriverBeat(1):
        actors = started(actor_sets, tmp_path)
        strike_while_sending(actors, "rollout-0", signal.SIGSTOP)
        actors.deadline = 10.0
        with pytest.raises(StuckError, match="rollout-0 does not answer"):
            actors.sync(0)
        actors.deadline = 300.0
        assert actors.start() == ("rollout-0",), "the others were waiting for it"
        actors.load(actors.materialise())
        assert actors.sync(0) and not actors.sync(0)


def test_an_engine_that_does_not_hold_the_base_gets_all_weights(actor_sets: list[RunActors], tmp_path: Path) -> None:
    """Skipped updates change the version alone, so that nothing is left to send to the other engine."""
    with DriverBeat(1):
        inexact = ("rollout.engine.dtype=bfloat16", "exact=false")
        actors = started(actor_sets, tmp_path, "trainer.sync=delta", *inexact)
        assert [receipt.delta for receipt in actors.sync(0)] == [False, False]
        actors.skip(batch_of([], 1, iteration=1))
        assert [(receipt.delta, receipt.bytes) for receipt in actors.sync(1)] == [(True, 0), (True, 0)]
        ray.get(actors._engines[0].begin_update.remote(1, 1))
        actors.skip(batch_of([], 1, iteration=2))
        lagging, current = actors.sync(2)
        assert (lagging.delta, current.delta, current.bytes) == (False, True, 0) and lagging.bytes
        actors.check_weights(2, None)


def train_adapters(actor: Any) -> None:
    """Gives a rank's adapters numbers, since fresh ones change nothing."""
    import torch

    with torch.no_grad():
        for number, (name, parameter) in enumerate(actor._engine.policy.loaded().named_parameters()):
            if ".lora_B." in name:
                parameter.fill_(0.01 * (number + 1))


def weights_of_engine(actor: Any) -> str:
    from yatt_core.digests import weights_digest

    return weights_digest({name: tensor.numpy() for name, tensor in actor._engine._tensors.items()})


@NEEDS_PEFT
@pytest.mark.parametrize("sync", ["adapter", "merged"])
@pytest.mark.parametrize("trainer", ["torch", "fsdp2"])
def test_adapters_reach_engines_that_are_there_and_one_that_comes_later(
    actor_sets: list[RunActors], tmp_path: Path, trainer: str, sync: str
) -> None:
    """Each engine computes with the weights of which the trainer states the digest, also after an engine is lost in mid-sync."""
    with DriverBeat(1):
        actors = started(actor_sets, tmp_path, f"trainer.engine.kind={trainer}", LORA.format(sync))
        strike_while_sending(actors, "rollout-1", signal.SIGKILL)
        with pytest.raises(LostActorError, match="rollout-1"):
            actors.sync(0)
        assert actors.start() == ("rollout-1",)
        actors.load(actors.materialise())
        ranks = actors._registry.of(TRAINER)
        ray.get([rank.__ray_call__.remote(train_adapters) for rank in ranks])
        (digest,) = set(ray.get([rank.weights_digest.remote(1, 0) for rank in ranks]))
        receipts = actors.sync(0)
        assert [receipt.instance for receipt in receipts] == [0, 1] and all(receipt.bytes for receipt in receipts)
        engines = actors._registry.of(ROLLOUT)
        assert ray.get([engine.__ray_call__.remote(weights_of_engine) for engine in engines]) == [digest] * 2
        assert not actors.sync(0), "all engines have them"
        actors.check_weights(0, digest)
