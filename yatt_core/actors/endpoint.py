"""The Ray actor of a third-party judge: fences its callers and sends their questions to the endpoint.

Consumes questions from controllers, and the limits and circuits that the runs of the home share; produces verdicts. It serves as
many requests at once as the endpoint allows, since requests spend most of their time waiting for the endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from yatt_core.actors.holdings import own_holdings
from yatt_core.actors.presence import Presence
from yatt_core.actors.use_meter import MemoryMeter, ProcessUse
from yatt_core.errors import InfrastructureError
from yatt_core.inputs.manifest import INPUTS
from yatt_core.judges.endpoint import EndpointJudge
from yatt_core.judges.loading import held_verdicts, load_judges
from yatt_core.judges.shared_state import ENDPOINTS
from yatt_core.logs import actor_logs
from yatt_core.protocols.judges import Judge, JudgeRequest, Verdict
from yatt_core.protocols.receipts import ActorIdentity
from yatt_core.spec import RunSpec
from yatt_core.spec.roles import endpoint_judges


class EndpointActor:
    """The judge of one reward part."""

    def __init__(self, spec_json: str, run_folder: str, index: int, term: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        self._folder = Path(run_folder)
        self._part = endpoint_judges(self._spec)[index]
        self._identity = actor_logs(self._folder, f"endpoint-{index}", term)
        grace = self._spec.recovery.grace_seconds
        self._presence = Presence(self._identity.name, term, grace)
        self._judge: Judge | None = None
        self._memory = MemoryMeter()

    def load(self, term: int, blocks: Mapping[str, str]) -> ActorIdentity:
        """Finds the endpoint's API key; sends nothing yet.

        blocks: the values of the Prefect blocks that the spec names, since an actor has no Prefect client.
        """
        with self._presence.serving("load", term):
            if self._judge is None:
                inputs = self._folder / INPUTS
                judges = load_judges(
                    spec=self._spec,
                    inputs=inputs,
                    parts=[self._part],
                    read_block=blocks.__getitem__,
                    shared=self._folder.parent / ENDPOINTS,
                )
                self._judge = judges[self._part.name]
        own = self._identity
        return ActorIdentity(own.name, own.pid, own.node, self._part.kind, holds=own_holdings())

    def process_use(self, term: int) -> ProcessUse:
        """Returns what the process holds; it has no device."""
        with self._presence.serving("process_use", term):
            return ProcessUse(None, self._memory.read(), self._presence.times.take())

    def judge(self, term: int, part: str, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Asks the endpoint and yields finished verdicts while the rest is in progress."""
        if self._judge is None or part != self._part.name:
            raise InfrastructureError(
                f"{self._identity.name} was asked to judge {part!r}, but is not loaded or judges another reward part"
            )
        with self._presence.serving("judge", term):
            yield from held_verdicts(self._judge.judge(request))

    def answers(self, term: int, dependency: str) -> bool | None:
        """Returns whether the endpoint answers again; None if something else is away."""
        with self._presence.serving("answers", term):
            if not isinstance(self._judge, EndpointJudge) or not self._judge.is_named(dependency):
                return None
            return self._judge.answers()
