"""The Ray actor of an engine's node without its scheduler, and the scheduler's node's view of all such actors of its engine.

Consumes calls of the engine's actor (`ConcurrentRolloutActor`); produces that engine's workers on the actor's node. The
workers take requests and weights from the engine, so that this actor only starts them, reports their end, and ends them.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util import get_node_ip_address

from yatt_core.actors.holdings import VISIBLE
from yatt_core.actors.presence import Presence
from yatt_core.cluster.metering import unwrap_ray_error
from yatt_core.engines.rollout.served.companions import Lost, Spanned
from yatt_core.engines.rollout.served.engine import process_settings
from yatt_core.engines.rollout.served.process import EngineProcess
from yatt_core.engines.rollout.served.protocol import FOLLOW, Opening
from yatt_core.engines.rollout.served.span import Span
from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH
from yatt_core.errors import ConfigurationError, InfrastructureError, YattError
from yatt_core.logs import actor_logs
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.accelerated import VllmRollout

SERVING = "serving"
SERVING_THREADS = 2
"""Ray's concurrency group for `serve`, and its threads: an earlier call may still be ending."""

LEFT = "the engine has ended"


class FollowerActor:
    """One node of an engine over several nodes.

    follower: its number in the run.
    gpus: numbers of its GPUs on its node if it has several; empty if it uses what Ray assigned to it.
    """

    def __init__(self, spec_json: str, run_folder: str, follower: int, term: int, gpus: tuple[str, ...] = ()) -> None:
        if gpus:
            os.environ[VISIBLE] = ",".join(gpus)
        self._spec = RunSpec.model_validate_json(spec_json)
        self._identity = actor_logs(Path(run_folder), f"follower-{follower}", term)
        self._presence = Presence(self._identity.name, term, self._spec.recovery.grace_seconds)
        self._process: EngineProcess | None = None

    @ray.method(concurrency_group=SERVING)  # type: ignore[untyped-decorator]
    def serve(self, term: int, model_path: str, engine: VllmRollout, longest: int, span: Span, invariant: bool) -> str:
        """Starts the workers in place of earlier ones; returns why they have ended, once they have.

        longest: maximum number of tokens of a sequence, including its prompt.
        span: this node's view, but for its address.
        invariant: as `Opening.invariant`.

        Raises as `VllmFollower` does.
        """
        self._presence.fence.check(term)
        self._end()
        own = replace(span, own=str(get_node_ip_address()))
        opening = Opening(model_path, process_settings(engine), longest, span=own, invariant=invariant)
        process = EngineProcess(
            VLLM_LAUNCH,
            engine.environment,
            opening,
            own.own,
            first=FOLLOW,
            started=self._keep,
        )
        return process.wait()

    def leave(self, term: int) -> None:
        """Ends the workers."""
        with self._presence.serving("leave", term):
            self._end()

    def _keep(self, process: EngineProcess) -> None:
        self._process = process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end(LEFT)


class Followers:
    """All other nodes of an engine, as the actor of its first node sees them.

    actors: of `FollowerActor`, in the order of the nodes.
    """

    def __init__(self, actors: Sequence[Any], term: int) -> None:
        self._actors = tuple(actors)
        self._term = term

    def join(
        self,
        model_path: str,
        engine: VllmRollout,
        longest: int,
        span: Span,
        invariant: bool,
        lost: Lost,
    ) -> None:
        """See `Companions`."""
        for number, actor in enumerate(self._actors, 1):
            own = replace(span, rank=number, own="")
            served = actor.serve.remote(
                self._term, model_path, engine=engine, longest=longest, span=own, invariant=invariant
            )
            watch = threading.Thread(target=_attend, args=(served, number, lost), name=f"node {number}", daemon=True)
            watch.start()

    def leave(self) -> None:
        """See `Companions`. An actor that cannot be reached is gone, and its workers with it."""
        for actor in self._actors:
            actor.leave.remote(self._term)


def spanned_by(actors: Sequence[Any], term: int) -> Spanned:
    """Returns what an engine of this actor needs to have other nodes' workers too.

    actors: of `FollowerActor`, in the order of the nodes.
    """
    host = str(get_node_ip_address())
    with socket.create_server((host, 0)) as listener:
        # The first worker listens there itself; if the port is taken by then, the engine is started again.
        port = int(listener.getsockname()[1])
    return Spanned(Span(nodes=len(actors) + 1, rank=0, host=host, port=port, own=host), Followers(actors, term))


def _attend(served: Any, number: int, lost: Lost) -> None:
    """Waits until a node's workers have ended, and passes on why."""
    kind: type[YattError] = InfrastructureError
    try:
        why = str(ray.get(served))
    except ray.exceptions.RayError as error:
        failure = unwrap_ray_error(error, "the actor of its workers")
        why = str(failure)
        if isinstance(failure, ConfigurationError):
            kind = ConfigurationError
    lost(f"node {number} of the vLLM engine is lost: {why}", kind)
