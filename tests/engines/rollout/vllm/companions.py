"""An engine over two nodes of which both are this machine: its second node's workers in a process of their own."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import psutil

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, Case, weights_of
from yatt_core.engines.rollout.served.companions import Lost, Spanned
from yatt_core.engines.rollout.served.engine import ServedRolloutEngine, process_settings
from yatt_core.engines.rollout.served.process import EngineProcess
from yatt_core.engines.rollout.served.protocol import FOLLOW, Opening
from yatt_core.engines.rollout.served.span import Span
from yatt_core.engines.rollout.vllm.launch import VLLM_LAUNCH
from yatt_core.errors import InfrastructureError
from yatt_core.spec.sections.accelerated import VllmRollout

HOST = "127.0.0.1"


class LocalCompanions:
    """The second node."""

    def __init__(self) -> None:
        self.process: EngineProcess | None = None

    def join(
        self,
        model_path: str,
        engine: VllmRollout,
        longest: int,
        span: Span,
        invariant: bool,
        lost: Lost,
    ) -> None:
        opening = Opening(
            model_path, process_settings(engine), longest, span=replace(span, rank=1), invariant=invariant
        )

        def serve() -> None:
            process = EngineProcess(VLLM_LAUNCH, None, opening, HOST, first=FOLLOW, started=self._keep)
            lost(f"the second node is lost: {process.wait()}", InfrastructureError)

        threading.Thread(target=serve, daemon=True).start()

    def leave(self) -> None:
        if self.process is not None:
            self.process.end("left")

    def _keep(self, process: EngineProcess) -> None:
        self.process = process

    @property
    def workers(self) -> list[psutil.Process]:
        """The workers of the second node."""
        assert self.process is not None
        return [each for each in psutil.Process(self.process.pid).children() if "Worker" in each.name()]


def spanned_case_of(folder: Path, **settings: int) -> tuple[Case, LocalCompanions]:
    """Returns an engine over two nodes of this machine, and the second node."""
    with socket.create_server((HOST, 0)) as listener:
        port = int(listener.getsockname()[1])
    spec = VllmRollout(instances=1, dtype="float32", **settings)
    companions = LocalCompanions()
    spanned = Spanned(Span(2, 0, HOST, port, HOST), companions)
    engine = ServedRolloutEngine(VLLM_LAUNCH, str(folder), spec, MAX_PROMPT, MAX_NEW, spanned=spanned)
    return Case("vllm", engine, lambda version: weights_of(folder, version), folder), companions
