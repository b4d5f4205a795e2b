"""What vLLM is asked of its batches on GPUs, and how an answer that changes in a crowd is found."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.rollout.cases import MAX_NEW, MAX_PROMPT, build_model, vllm_case_of
from tests.engines.rollout.cases import VOCABULARY as TOKENS
from tests.needs import NEEDS_VLLM, VLLM_DIFFERS_IN_BFLOAT16
from tests.spec.trees import spec
from yatt_core.engines.environment import rollout_facts
from yatt_core.engines.rollout.served.engine import process_settings
from yatt_core.engines.rollout.served.protocol import Opening
from yatt_core.engines.rollout.served.responses import Response, Step
from yatt_core.engines.rollout.vllm.environment import INVARIANT, engine_environment
from yatt_core.engines.rollout.vllm.invariance import (
    LEAST_CROWD,
    NEW_TOKENS,
    is_invariant,
    probe_prompts,
    repeats_in_a_crowd,
)
from yatt_core.engines.rollout.vllm.settings import settings_of
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.spec.sections.accelerated import VllmRollout

VOCABULARY = 97
LONGEST = 64
SEQUENCES = 96


class Answers:
    """Answers each prompt by its content; with `drift`, the last bit of a log-probability depends on the crowd's size."""

    def __init__(self, drift: bool = False, wrong: bool = False) -> None:
        self._drift = drift
        self._wrong = wrong
        self._ended: list[tuple[str, Response]] = []
        self.salts: list[str] = []

    def submit(self, request: GenerateRequest, names: Sequence[str], salt: str) -> None:
        self.salts.append(salt)
        for name, prompt, (seed,) in zip(names, request.prompts, request.seeds.tolist(), strict=True):
            drawn = np.random.default_rng(seed)
            tokens = drawn.integers(0, VOCABULARY, 4, dtype=np.int32)
            log_probs = -drawn.random(4, dtype=np.float32)
            if self._drift and len(names) == 3:
                log_probs[2] = np.nextafter(log_probs[2], np.float32(0))
            if self._wrong and len(names) == 1:
                tokens[0] += 1
            assert prompt.size < LONGEST
            self._ended.append((name, Response(tokens, log_probs, 1, np.zeros(4, np.int32))))

    def step(self, most: int) -> Step:
        ended = tuple(self._ended[:most])
        self._ended = self._ended[most:]
        return Step(ended, 1, len(ended), 0.0)


def test_answers_with_the_same_bits_in_every_crowd_are_found_to_be_so() -> None:
    engine = Answers()
    assert repeats_in_a_crowd(engine, VOCABULARY, LONGEST, SEQUENCES)
    again = [salt for salt in engine.salts if engine.salts.count(salt) > 1]
    assert again == ["crowd", "crowd"], "once from the cache, otherwise from no other crowd's"


@pytest.mark.parametrize("fault", ["drift", "wrong"])
def test_one_bit_of_a_log_probability_or_a_token_is_noticed(fault: str) -> None:
    assert not repeats_in_a_crowd(
        Answers(drift=fault == "drift", wrong=fault == "wrong"), VOCABULARY, LONGEST, SEQUENCES
    )


class OnGpus(Answers):
    """An engine whose answers drift only once its weights have been updated, as vLLM's in bfloat16 do."""

    vocabulary = VOCABULARY

    def __init__(self, drifts_after_update: bool = False) -> None:
        super().__init__()
        self._drifts = drifts_after_update
        self.updates = 0

    def load_again(self) -> None:
        self.updates += 1
        self._drift = self._drifts


def opened(asked: bool) -> Opening:
    return Opening("models/a", {}, LONGEST, invariant=asked)


SETTINGS = settings_of(process_settings(VllmRollout(instances=1, dtype="bfloat16", max_num_seqs=SEQUENCES)))


def test_on_gpus_an_engine_is_asked_after_an_update_if_the_run_must_be_exact() -> None:
    sound = OnGpus()
    assert is_invariant(sound, SETTINGS, opened(True), processors=False)
    assert sound.updates == 1 and sound.salts
    drifting = OnGpus(drifts_after_update=True)
    assert not is_invariant(drifting, SETTINGS, opened(True), processors=False)


def test_on_gpus_an_engine_outside_of_vllms_mode_is_not_asked() -> None:
    engine = OnGpus()
    assert not is_invariant(engine, SETTINGS, opened(False), processors=False)
    assert not engine.updates and not engine.salts


@pytest.mark.parametrize(
    ("dtype", "cache", "declared"),
    [("float32", "auto", True), ("bfloat16", "auto", False), ("float32", "fp8", False)],
)
def test_on_processors_it_is_declared_and_not_asked(dtype: str, cache: str, declared: bool) -> None:
    engine = OnGpus()
    settings = replace(SETTINGS, dtype=dtype, kv_cache_dtype=cache)
    assert is_invariant(engine, settings, opened(True), processors=True) is declared
    bits = {True: "batch-invariant kernels", False: "not exact"}[declared]
    vllm = spec(rollout__engine={"kind": "vllm", "instances": 1, "dtype": dtype}, exact="auto")
    assert rollout_facts(vllm, [{"batch_invariant": declared}] * 2) == {"rollout bits": bits}
    assert not engine.salts


@pytest.mark.parametrize("longest", [2, 5, 1000])
def test_prompts_of_a_probe_leave_room_for_an_answer(longest: int) -> None:
    prompts = probe_prompts(VOCABULARY, longest, LEAST_CROWD)
    assert len(prompts) == LEAST_CROWD and prompts[0].size == max(1, longest - NEW_TOKENS)
    assert all(0 < prompt.size < longest and prompt.max() < VOCABULARY for prompt in prompts)


def test_vllms_mode_is_on_for_gpus_that_are_to_be_exact() -> None:
    (name,) = INVARIANT
    assert engine_environment(processors=False, invariant=True)[name] == "1"
    assert name not in engine_environment(processors=False)
    assert name not in engine_environment(processors=True, invariant=True), "vLLM has no such mode for processors"


def test_on_processors_a_worker_has_one_thread_whatever_the_shell_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert engine_environment(processors=True)["OMP_NUM_THREADS"] == "1"
    assert engine_environment(processors=False)["OMP_NUM_THREADS"] == "4"


class Served:
    """An engine in a process of its own, asked by its protocol."""

    def __init__(self, engine: Any) -> None:
        self._process = engine._core

    def submit(self, request: GenerateRequest, names: Sequence[str], salt: str) -> None:
        self._process.call("submit", request, names, salt)

    def step(self, most: int) -> Step:
        step: Step = self._process.call("step", most)
        return step


@NEEDS_VLLM
@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("dtype", "repeats"), [("float32", True), ("bfloat16", False)])
def test_on_processors_the_answer_is_what_is_declared(tmp_path: Path, dtype: str, repeats: bool) -> None:
    """After an update: until the first one, vLLM 0.32 repeats its bits in bfloat16 too. Some processors do afterwards as well."""
    folder = tmp_path / "paired"
    build_model(folder, "paired")
    case = vllm_case_of(folder, dtype=dtype)
    with closing(case.engine) as engine:
        assert engine.capabilities["batch_invariant"] is repeats
        engine.update_weights(case.weights(1), 1)
        found = repeats_in_a_crowd(Served(engine), TOKENS, MAX_PROMPT + MAX_NEW, 64)
        assert found is repeats or (found and not VLLM_DIFFERS_IN_BFLOAT16), "what is declared to repeat does"
