"""Pipeline stages, which have several batches in flight."""

from __future__ import annotations

from types import SimpleNamespace

from yatt_core.engines.rollout.served.engine import process_settings
from yatt_core.engines.rollout.served.protocol import Opening
from yatt_core.spec.sections.accelerated import VllmRollout


class Staged:
    """Stands in for vLLM's engine with pipeline stages, which a CPU cannot run: one batch is in flight."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.engine_core = SimpleNamespace(engine_core=self)
        self.batch_queue = [1]
        self.batch_queue_size = 2

    def step(self):
        self.log.append("step")
        logprobs = SimpleNamespace(logprobs=[-0.5], start_indices=[0])
        span = SimpleNamespace(version="0", start=0, end=1)
        ended = SimpleNamespace(finish_reason="stop", logprobs=logprobs, weight_versions=[span], token_ids=[1])
        return [SimpleNamespace(request_id="0.0", outputs=[ended])] if self.log.count("step") == 2 else []

    def get_num_unfinished_requests(self) -> int:
        return 1

    def pause_scheduler(self, mode: str, clear_cache: bool) -> None:
        self.log.append(f"pause {mode} {clear_cache}")

    def resume_scheduler(self) -> None:
        self.log.append("resume")

    def set_weight_version(self, version: str) -> None: ...

    def collective_rpc(self, method: str, args: tuple = ()) -> None:
        self.log.append(method)
        assert args == (({},) if method == "begin_weights" else ())


def test_batches_in_flight_are_finished_before_an_update(monkeypatch):
    from yatt_core.engines.rollout.vllm import core as module

    staged = Staged()
    monkeypatch.setattr(module, "open_engine", lambda *_: staged)
    monkeypatch.setattr(module, "Pictures", lambda *_: None)
    core = module.VllmCore(Opening("", process_settings(VllmRollout()), 0, 0))
    core.begin_update({})
    steps = ["step"] * (2 * staged.batch_queue_size)
    assert staged.log == ["settle_in", "pause keep False", *steps, "resume", "begin_weights"]
    ((name, response),) = core.step(1).ended
    assert (name, response.versions.tolist()) == ("0.0", [0]), "what they finished is kept"
    assert core.step(1).ended == ()


def test_a_call_steps_until_a_response_ends_or_as_often_as_is_asked(monkeypatch):
    from yatt_core.engines.rollout.vllm import core as module

    staged = Staged()
    monkeypatch.setattr(module, "open_engine", lambda *_: staged)
    monkeypatch.setattr(module, "Pictures", lambda *_: None)
    core = module.VllmCore(Opening("", process_settings(VllmRollout()), 0, 0))
    done = core.step(8)
    assert (done.steps, done.sequences, len(done.ended)) == (2, 2, 1)
    done = core.step(3)
    assert (done.steps, done.sequences, done.ended) == (3, 3, ())
