"""Calls that share one loop: whatever joins or leaves it and goes on elsewhere has the bits of a decode batch of its own."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.rollout.cases import (
    MAX_NEW,
    MAX_PROMPT,
    STOP,
    prompts_of,
    request_of,
    rows_of,
    torch_case,
    weights_of,
)
from tests.matrix import examples
from yatt_core.engines.rollout.torch.continuous import ContinuousTorchEngine
from yatt_core.engines.rollout.torch.crowd import Crowd, CrowdCall
from yatt_core.engines.rollout.torch.decoding import decode
from yatt_core.engines.rollout.torch.dense_runner import DenseRunner
from yatt_core.engines.rollout.torch.module_runner import ModuleRunner
from yatt_core.engines.rollout.torch.runner import Runner
from yatt_core.errors import DataError, InfrastructureError, NumericError
from yatt_core.models.loading import load_causal_lm
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult, Returned, resumed_request
from yatt_core.protocols.pieces import cut_piece, join_pieces

PLACES = 7
WAIT_SECONDS = 60.0
KINDS = (DenseRunner, ModuleRunner)


@pytest.fixture(scope="module", params=KINDS)
def runners(request: pytest.FixtureRequest, model_folder: Path) -> list[Runner]:
    """Returns runners of the same weights: one that answers planned batches, and those of three instances."""
    return [request.param(load_causal_lm(str(model_folder), "float32")) for _ in range(4)]


class Instances:
    """Instances whose responses move among them. Drives the state machines without threads."""

    def __init__(self, runners: Sequence[Runner], most: int) -> None:
        self.crowds = [Crowd(runner, most, MAX_PROMPT, MAX_NEW) for runner in runners]
        self.open: list[tuple[Crowd, CrowdCall, Any, tuple[int, ...]]] = []
        self.pieces: dict[Any, list[GeneratePiece]] = {}
        self.moves = 0

    def submit(self, place: int, name: Any, request: GenerateRequest, rows: tuple[int, ...] | None = None) -> None:
        """Sends a request to an instance. rows: its responses' numbers in the request that they are of."""
        crowd = self.crowds[place]
        own = tuple(range(request.seeds.size)) if rows is None else rows
        self.open.append((crowd, crowd.join(request, len(self.open)), name, own))

    def step(self, place: int) -> None:
        self.crowds[place].admit()
        self.crowds[place].advance()

    def hear(self, choose: random.Random) -> None:
        """Takes what has arrived; what was handed over goes to instances by lot, response by response."""
        for crowd, call, name, rows in list(self.open):
            while call.arrived:
                came = call.arrived.popleft()
                assert isinstance(came, GeneratePiece | Returned)
                own = tuple(rows[row] for row in came.rows)
                if isinstance(came, GeneratePiece):
                    self.pieces.setdefault(name, []).append(GeneratePiece(own, came.result))
                    continue
                self.moves += len(own)
                for place, row in enumerate(came.rows):
                    alone = cut_piece(came.result, np.array([place]), 0.0).result
                    rest = resumed_request(call.request, Returned((row,), alone))
                    self.submit(choose.randrange(len(self.crowds)), name, rest, (own[place],))
            if not call.left:
                crowd.withdraw(call)
                self.open = [each for each in self.open if each[1] is not call]

    def results(self) -> dict[Any, GenerateResult]:
        return {name: join_pieces(pieces).result for name, pieces in self.pieces.items()}


def moved_about(
    runners: Sequence[Runner], requests: Sequence[GenerateRequest], seed: int, most: int = PLACES
) -> tuple[list[GenerateResult], int]:
    """Returns the answers of instances on which requests come, and responses move, at random; and the number of moves."""
    choose = random.Random(seed)
    instances = Instances(runners, most)
    waiting = list(enumerate(requests))
    steps = 0
    while waiting or instances.open:
        steps += 1
        if waiting and choose.random() < 0.4:
            instances.submit(choose.randrange(len(runners)), *waiting.pop(0))
        if choose.random() < 0.3 and steps < 200:
            instances.crowds[choose.randrange(len(runners))].hand_over(choose.randint(1, 6))
        for place in range(len(runners)):
            if choose.random() < 0.8:  # an instance that is slower now and then
                instances.step(place)
        instances.hear(choose)
    found = instances.results()
    return [found[number] for number in range(len(requests))], instances.moves


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shaped": {"temperature": 0.7, "min_new_tokens": 6, "repetition_penalty": 1.3},
    "supports": {"top_k": 5, "top_p": 0.9, "record_support": True},
    "greedy": {"greedy": True},
}


@settings(max_examples=examples(6, least=2), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6), sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=4)
)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_moved_responses_have_the_bits_of_planned_batches(
    runners: list[Runner], options: dict[str, Any], seed: int, sizes: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(seed)
    requests = []
    for number, (prompts, samples) in enumerate(sizes):
        lengths = rng.integers(1, 80, prompts)
        limits = rng.integers(1, MAX_NEW + 1, prompts).astype(np.int32)
        seeds = rng.integers(0, 1 << 60, (prompts, samples)).astype(np.uint64)
        requests.append(
            request_of(
                prompts_of(lengths, number), seeds=seeds, limits=limits, max_new_tokens=int(limits.max()), **options
            )
        )
    found, _ = moved_about(runners[1:], requests, seed)
    for result, request in zip(found, requests, strict=True):
        expected = decode(runners[0], request)
        assert rows_of(result) == rows_of(expected)
        if request.record_support:
            assert result.support_tokens is not None and expected.support_tokens is not None
            assert result.support_tokens.tolist() == expected.support_tokens.tolist()
            assert result.support_sizes is not None and expected.support_sizes is not None
            assert result.support_sizes.tolist() == expected.support_sizes.tolist()


def test_responses_do_move(runners: list[Runner]) -> None:
    request = request_of(prompts_of([5, 40, 9]), samples=4, stop_tokens=(), max_new_tokens=MAX_NEW)
    found, moves = moved_about(runners[1:], [request], seed=3)
    assert moves > 10 and rows_of(found[0]) == rows_of(decode(runners[0], request))


def test_a_moved_slice_goes_on_with_its_noise(runners: list[Runner]) -> None:
    drawn = np.array([3, 0, 11], np.int32)
    request = request_of(
        prompts_of([9, 4, 30]), drawn=drawn, min_new_tokens=8, stop_tokens=(STOP,), max_new_tokens=MAX_NEW
    )
    found, moves = moved_about(runners[1:], [request], seed=5)
    assert moves and rows_of(found[0]) == rows_of(decode(runners[0], request))


def test_long_responses_are_read_again_in_parts(model_folder: Path) -> None:
    """A part of what is read again has 64 tokens; the last one may have any number."""
    runners: list[Runner] = [kind(load_causal_lm(str(model_folder), "float32")) for kind in KINDS for _ in range(2)]
    for planned, other in (runners[:2], runners[2:]):
        request = request_of(prompts_of([70]), samples=2, stop_tokens=(), max_new_tokens=170)
        whole = decode(planned, request)
        for kept in (1, 2, 64, 65, 66, 129, 169):
            begun = GenerateResult(
                tokens=np.concatenate([whole.tokens[:kept], whole.tokens[170 : 170 + kept]]),
                log_probs=np.concatenate([whole.log_probs[:kept], whole.log_probs[170 : 170 + kept]]),
                lengths=np.array([kept, kept], np.int32),
                finish=whole.finish,
                weight_version=0,
                seconds=0.0,
            )
            rest = resumed_request(request, Returned((0, 1), begun))
            assert rows_of(decode(other, rest)) == rows_of(whole), kept


def test_only_what_is_drawn_alike_is_decoded_together(runners: list[Runner]) -> None:
    crowd = Crowd(runners[1], PLACES, MAX_PROMPT, MAX_NEW)
    first = crowd.join(request_of(prompts_of([5]), samples=2, stop_tokens=(), max_new_tokens=4), 0)
    other = crowd.join(request_of(prompts_of([5]), samples=2, stop_tokens=(), max_new_tokens=4, temperature=0.5), 0)
    alone = []
    while first.left or other.left:
        crowd.admit()
        alone.append((crowd.alive, bool(first.left), other.entered))
        crowd.advance()
    assert all(alive == 2 for alive, _, _ in alone)
    assert not any(before and entered for _, before, entered in alone)
    (piece,) = other.arrived
    assert isinstance(piece, GeneratePiece)
    alike = request_of(prompts_of([5]), samples=2, stop_tokens=(), max_new_tokens=4, temperature=0.5)
    assert rows_of(piece.result) == rows_of(decode(runners[0], alike))


def test_first_turns_with_a_minimum_and_later_ones_are_decoded_together(runners: list[Runner]) -> None:
    crowd = Crowd(runners[1], PLACES, MAX_PROMPT, MAX_NEW)
    requests = [
        request_of(
            prompts_of([5]), samples=3, stop_tokens=tuple(range(20)), max_new_tokens=MAX_NEW, min_new_tokens=least
        )
        for least in (8, 0)
    ]
    calls = [crowd.join(request, number) for number, request in enumerate(requests)]
    crowd.admit()
    assert [call.entered for call in calls] == [1, 1]
    while any(call.left for call in calls):
        crowd.advance()
    for call, request in zip(calls, requests, strict=True):
        pieces = [piece for piece in call.arrived if isinstance(piece, GeneratePiece)]
        found = join_pieces(pieces).result
        assert rows_of(found) == rows_of(decode(runners[0], request))
        assert (found.lengths.min() >= 8) == bool(request.min_new_tokens)


def test_a_prompt_with_more_samples_than_places_has_them_all_at_once(runners: list[Runner]) -> None:
    request = request_of(prompts_of([5, 9]), samples=PLACES + 3, max_new_tokens=MAX_NEW)
    found, _ = moved_about(runners[1:2], [request], seed=1)
    assert rows_of(found[0]) == rows_of(decode(runners[0], request))


def test_the_newest_responses_leave_first_and_waiting_prompts_before_them(runners: list[Runner]) -> None:
    crowd = Crowd(runners[1], PLACES, MAX_PROMPT, MAX_NEW)
    early = crowd.join(request_of(prompts_of([5]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW), 0)
    late = crowd.join(request_of(prompts_of([5, 6]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW), 0)
    crowd.admit()
    crowd.advance()
    crowd.advance()
    assert (early.waiting, late.waiting) == (0, 1)
    crowd.hand_over(5)
    came = [(piece.rows, piece.result.lengths.tolist()) for piece in late.arrived]
    assert came == [((3, 4, 5), [0, 0, 0]), ((1, 2), [3, 3])]
    assert not early.arrived and (early.left, late.left) == (3, 1)
    crowd.hand_over(100)
    assert (early.left, late.left, crowd.alive) == (0, 0, 0)


def test_a_request_that_is_given_up_is_not_handed_over_in_place_of_others(runners: list[Runner]) -> None:
    crowd = Crowd(runners[1], PLACES, MAX_PROMPT, MAX_NEW)
    wanted = crowd.join(request_of(prompts_of([5]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW), 7)
    unwanted = crowd.join(request_of(prompts_of([5, 6]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW), 8)
    crowd.admit()
    crowd.advance()
    crowd.give_up([8, 9])
    assert (unwanted.left, list(unwanted.arrived), crowd.alive) == (0, [], 3)
    crowd.hand_over(3)
    assert [piece.rows for piece in wanted.arrived if isinstance(piece, Returned)] == [(0, 1, 2)]
    assert not unwanted.arrived


def test_prompts_that_cannot_be_read_end_their_own_request_alone(
    runners: list[Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = 13
    reads = runners[1].prefill

    def prefill(request: GenerateRequest, members: Any, places: Any, rows: Any) -> Any:
        if any(len(request.prompts[member]) == unreadable for member in members.tolist()):
            raise DataError("image 3 cannot be read")
        return reads(request, members, places, rows)

    monkeypatch.setattr(runners[1], "prefill", prefill)
    requests = [
        request_of(prompts_of([5]), samples=2, stop_tokens=(), max_new_tokens=MAX_NEW),
        request_of(prompts_of([6, unreadable]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW // 2),
        request_of(prompts_of([7, 30]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW),
    ]
    crowd = Crowd(runners[1], PLACES, MAX_PROMPT, MAX_NEW)
    calls = [crowd.join(request, number) for number, request in enumerate(requests)]
    while any(call.left for call in calls):
        crowd.admit()
        crowd.advance()
    assert str(calls[1].arrived.pop()) == "image 3 cannot be read" and crowd.alive == 0
    for place in (0, 2):
        pieces = [piece for piece in calls[place].arrived if isinstance(piece, GeneratePiece)]
        assert rows_of(join_pieces(pieces).result) == rows_of(decode(runners[0], requests[place]))


@pytest.fixture
def engine(model_folder: Path) -> Iterator[ContinuousTorchEngine]:
    case = torch_case(model_folder, name="torch-continuous")
    case.engine.update_weights(case.weights(0), 0)
    assert isinstance(case.engine, ContinuousTorchEngine)
    yield case.engine


def test_threads_share_a_loop_and_get_their_own_answers(engine: ContinuousTorchEngine, model_folder: Path) -> None:
    planned = torch_case(model_folder).engine
    planned.update_weights(weights_of(model_folder, 0), 0)
    requests = [
        request_of(prompts_of([3 + number, 20], number), samples=2 + number % 2, stop_tokens=(), max_new_tokens=MAX_NEW)
        for number in range(6)
    ]
    together = threading.Barrier(len(requests))

    def ask(request: GenerateRequest) -> GenerateResult:
        together.wait(WAIT_SECONDS)
        return engine.generate(request)

    with ThreadPoolExecutor(len(requests)) as threads:
        found = list(threads.map(ask, requests, timeout=WAIT_SECONDS))
    for result, request in zip(found, requests, strict=True):
        assert rows_of(result) == rows_of(planned.generate(request))
    work = engine.take_work()
    assert 0 < work.steps < 3 * MAX_NEW, "they share steps, of which each call alone takes nearly MAX_NEW"
    assert work.sequence_steps >= sum(int(result.lengths.sum()) for result in found) - sum(
        request.seeds.size for request in requests
    )
    assert work.prompt_tokens == sum(len(prompt) for request in requests for prompt in request.prompts)
    assert work.seconds > 0 and work.prefill_seconds > 0 and engine.take_work().steps == 0


def test_a_call_returns_what_is_handed_over_and_ends(engine: ContinuousTorchEngine) -> None:
    request = request_of(prompts_of([9]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW)
    answers = engine.answers(request, 1)
    assert next(answers) is None
    engine.hand_over(2)
    came = [piece for piece in answers if piece is not None]
    assert [type(piece) for piece in came] == [Returned, GeneratePiece]
    assert [piece.rows for piece in came] == [(1, 2), (0,)]
    with pytest.raises(InfrastructureError, match="nobody would go on"):
        for number, _ in enumerate(engine.stream(request)):
            if not number:
                engine.hand_over(1)


@pytest.mark.parametrize("disturb", ["begin_update", "sleep"])
def test_calls_fail_when_their_weights_go(engine: ContinuousTorchEngine, disturb: str) -> None:
    answers = engine.answers(request_of(prompts_of([9]), stop_tokens=(), max_new_tokens=MAX_NEW), 1)
    assert next(answers) is None
    engine.begin_update(1) if disturb == "begin_update" else engine.sleep()
    with pytest.raises(InfrastructureError, match="weights changed" if disturb == "begin_update" else "fell asleep"):
        list(answers)


def test_an_error_of_a_step_reaches_every_call(engine: ContinuousTorchEngine, model_folder: Path) -> None:
    broken = {name: np.full_like(tensor, np.nan) for name, tensor in weights_of(model_folder, 0).items()}
    engine.update_weights(broken, 1)
    together = threading.Barrier(2)

    def ask() -> str:
        together.wait(WAIT_SECONDS)
        try:
            engine.generate(request_of(prompts_of([9]), weight_version=1))
        except NumericError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as threads:
        said = [future.result(WAIT_SECONDS) for future in (threads.submit(ask), threads.submit(ask))]
    assert all("not finite (weights of version 1)" in text for text in said)
    engine.update_weights(weights_of(model_folder, 0), 2)
    assert engine.generate(request_of(prompts_of([9]), weight_version=2)).lengths[0]


def test_an_empty_prompt_harms_no_other_call(engine: ContinuousTorchEngine) -> None:
    answers = engine.answers(request_of(prompts_of([9]), stop_tokens=(), max_new_tokens=MAX_NEW), 1)
    assert next(answers) is None
    with pytest.raises(DataError, match=r"prompt 1 .* no tokens"):
        engine.generate(request_of([prompts_of([3])[0], np.zeros(0, np.int32)]))
    assert [piece.rows for piece in answers if piece is not None] == [(0,)]


def test_a_call_that_is_given_up_leaves_room(engine: ContinuousTorchEngine) -> None:
    answers = engine.answers(request_of(prompts_of([9] * 4), samples=12, stop_tokens=(), max_new_tokens=MAX_NEW), 1)
    assert next(answers) is None
    assert engine._crowd.alive == 48
    answers.close()
    assert engine._crowd.alive == 0
    assert len(engine.generate(request_of(prompts_of([9] * 4), samples=12)).lengths) == 48


def test_a_call_that_is_given_up_by_its_number_ends(engine: ContinuousTorchEngine) -> None:
    request = request_of(prompts_of([9]), samples=3, stop_tokens=(), max_new_tokens=MAX_NEW)
    unwanted = engine.answers(request, 4)
    wanted = engine.answers(request, 5)
    assert next(unwanted) is None and next(wanted) is None
    engine.give_up([4])
    assert not [piece for piece in unwanted if piece is not None]
    assert engine._crowd.alive == 3
    assert sum(len(piece.rows) for piece in wanted if piece is not None) == 3
