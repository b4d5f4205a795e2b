"""The Ray actor around a judge of others: fences its callers, and asks the endpoint for them.

Consumes questions from controllers; produces verdicts. As many requests are served at once as the endpoint may have under way,
most of whose time is spent waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from yatt_core.actors.presence import Presence
from yatt_core.errors import InfrastructureError
from yatt_core.inputs.manifest import INPUTS
from yatt_core.judges.loading import held_verdicts, load_judges
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
        self._presence = Presence(self._folder, self._identity.name, term, grace)
        self._judge: Judge | None = None

    def load(self, term: int) -> ActorIdentity:
        """Finds the key that the endpoint asks for; nothing is sent yet."""
        with self._presence.serving("load", term):
            if self._judge is None:
                self._judge = load_judges(self._spec, self._folder / INPUTS, [self._part])[self._part.name]
        return ActorIdentity(self._identity.name, self._identity.pid, self._identity.node, self._part.kind)

    def judge(self, term: int, part: str, request: JudgeRequest) -> Iterator[tuple[Verdict, ...]]:
        """Asks the endpoint, piece by piece while it works on the rest."""
        if self._judge is None or part != self._part.name:
            raise InfrastructureError(
                f"{self._identity.name} was asked for {part!r} before it was loaded, or is another's"
            )
        with self._presence.serving("judge", term):
            yield from held_verdicts(self._judge.judge(request))
