"""The stream between a controller and the pool: pieces in any order, bounded bytes, newer drivers, faulty engines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix import examples
from yatt_core.dispatch import generation
from yatt_core.dispatch.generation import GenerationStream
from yatt_core.dispatch.in_flight import BytesInFlight, bytes_of
from yatt_core.engines.virtual.rollout import VirtualRolloutEngine
from yatt_core.errors import FencedError, InfrastructureError
from yatt_core.fence import TermFence
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, Returned
from yatt_core.protocols.pieces import cut_beginnings, join_pieces
from yatt_core.spec.sections.rollout import VirtualRollout

Outcome = Any
SIZES = ((1, "first"), (2, "second"), (3, "late"), (4, "later"))
"""Numbers of prompts of decode batches, and their names."""


class Reference:
    """A reference to a value that is available, or to an error."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Pieces:
    """The references of a streaming call."""

    def __init__(self, outcomes: Iterator[Outcome]) -> None:
        self._outcomes = outcomes

    def __next__(self) -> Reference:
        return Reference(next(self._outcomes))


@dataclass
class Pool:
    """Stands in for Ray, the dispatcher and one engine.

    refusals: terms whose calls the engine refuses.
    gives_back: number of calls that the engine returns half done.
    resumed: requests that resumed partial responses.
    """

    seed: int = 0
    refusals: set[int] = field(default_factory=set)
    drops_the_last: bool = False
    gives_back: int = 0
    resumed: list[GenerateRequest] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    ahead: list[bool] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec = VirtualRollout(base_seconds=0, seconds_per_sequence=0, median_tokens=8, sigma=0.8)
        self.virtual = VirtualRolloutEngine(spec, seed=1)
        self.virtual.update_weights({"w": np.zeros(4)}, 0)
        self.order = random.Random(self.seed)

    def wait(
        self, references: list[Any], num_returns: int, timeout: float | None = None
    ) -> tuple[list[Any], list[Any]]:
        count = self.order.randint(0, num_returns) if timeout == 0 else num_returns
        chosen = self.order.sample(references, count)
        return chosen, [reference for reference in references if reference not in chosen]

    def get(self, reference: Reference) -> Any:
        if isinstance(reference.outcome, Exception):
            raise reference.outcome
        return reference.outcome

    @property
    def dispatcher(self) -> Any:
        def acquire(term: int, owner: str, size: int, role: str, at_the_head: bool) -> Reference:
            self.asked.append(size)
            self.ahead.append(at_the_head)
            return Reference((len(self.asked), 0, self.engine))

        calls: dict[str, Any] = {"acquire": acquire, "release": self.released.append, "forget": self.forgotten.append}
        calls["progress"] = lambda number, ended: None
        return SimpleNamespace(**{name: SimpleNamespace(remote=call) for name, call in calls.items()})

    @property
    def engine(self) -> Any:
        return SimpleNamespace(
            generate=SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self._stream))
        )

    def _stream(self, term: int, request: GenerateRequest, number: int) -> Pieces:
        assert 0 < number <= len(self.asked), "the grant's, by which the call is given up"
        if term in self.refusals:
            return Pieces(iter([FencedError(f"term {term} was replaced")]))
        pieces: list[Outcome] = list(self.virtual.stream(request))
        if request.begun is not None:
            self.resumed.append(request)
        if self.gives_back and pieces:
            self.gives_back -= 1
            kept = pieces[: len(pieces) // 2]
            left = pieces[len(pieces) // 2 :]
            joined = join_pieces(left)
            lengths = np.array([1 + row % 2 for row in joined.rows])
            begun = cut_beginnings(joined.result, np.arange(len(lengths)), np.minimum(lengths, joined.result.lengths))
            pieces = [*kept, Returned(joined.rows, begun)]
        return Pieces(iter(pieces[:-1] if self.drops_the_last else pieces))


def request_of(number: int, prompts: int) -> GenerateRequest:
    texts = [np.array([number, prompt], np.int32) for prompt in range(prompts)]
    seeds = np.arange(prompts * 2, dtype=np.uint64).reshape(prompts, 2)
    return GenerateRequest(texts, seeds, 30, (0,), 0)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch):
    def stream(pool: Pool, bound: int = 1 << 30, newest: int = 1) -> GenerationStream[Any]:
        ray_like = SimpleNamespace(wait=pool.wait, get=pool.get, exceptions=ray.exceptions)
        monkeypatch.setattr(generation, "ray", ray_like)
        return GenerationStream(pool.dispatcher, "controller-0", TermFence(1, lambda: newest), BytesInFlight(bound))

    return stream


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 9000), st.integers(0, 1000), st.integers(0, 5)
)
def test_every_batch_arrives_complete_and_within_the_bound_in_any_order(sizes, bound, seed, gives_back):
    with pytest.MonkeyPatch.context() as patch:
        pool = Pool(seed, gives_back=gives_back)
        in_flight = BytesInFlight(bound)
        patch.setattr(generation, "ray", SimpleNamespace(wait=pool.wait, get=pool.get, exceptions=ray.exceptions))
        requests = [request_of(number, prompts) for number, prompts in enumerate(sizes)]
        with GenerationStream[list[int]](pool.dispatcher, "c", TermFence(1, lambda: 1), in_flight) as stream:
            for number, request in enumerate(requests):
                stream.submit([number], request)
            results = {}
            for (number,), result in stream.results():
                assert in_flight.now <= max(bound, bytes_of(requests[number]))
                results[number] = result
    assert sorted(results) == list(range(len(sizes)))
    for number, request in enumerate(requests):
        assert results[number].tokens.tolist() == pool.virtual.generate(request).tokens.tolist()
    assert sorted(pool.released) == list(range(1, len(pool.asked) + 1))
    assert len(pool.asked) == len(sizes) + len(pool.resumed)
    assert (in_flight.now, pool.forgotten) == (0, [])


def test_returned_responses_resume_where_they_stopped_with_their_own_seeds(stand_in):
    pool = Pool(gives_back=2)
    request = request_of(0, 5)
    with stand_in(pool) as stream:
        stream.submit("only", request)
        arrivals = list(stream.arrivals())
    assert sorted(row for arrival in arrivals for row in arrival.piece.rows) == list(range(10))
    assert [arrival.complete for arrival in arrivals] == [False] * (len(arrivals) - 1) + [True]
    assert len(pool.resumed) > 2 and pool.asked == [10] + [1] * len(pool.resumed), (
        "resumed responses are requested one by one, so that several engines can share them"
    )
    whole = {
        (prompt.tobytes(), seed) for prompt, seeds in zip(request.prompts, request.seeds, strict=True) for seed in seeds
    }
    for resumed in pool.resumed:
        pairs = {(prompt.tobytes(), seeds[0]) for prompt, seeds in zip(resumed.prompts, resumed.seeds, strict=True)}
        assert pairs < whole and resumed.begun is not None and set(resumed.begun.lengths.tolist()) <= {1, 2}
        (prompt,) = resumed.prompts
        row = next(
            number
            for number in range(10)
            if resumed.seeds[0, 0] == request.seeds.reshape(-1)[number]
            and request.prompts[number // 2].tolist() == prompt.tolist()
        )
        tokens = pool.virtual.generate(request)
        start = int(tokens.lengths[:row].sum())
        assert resumed.begun.tokens.tolist() == tokens.tokens[start : start + len(resumed.begun.tokens)].tolist()


def test_a_batch_waits_until_the_one_before_it_is_processed(stand_in):
    pool = Pool()
    with stand_in(pool, bound=1) as stream:
        for number in range(3):
            stream.submit(number, request_of(number, 2))
        asked = []
        for arrival in stream.arrivals():
            if arrival.complete:
                asked.append(len(pool.asked))
    assert asked == [1, 2, 3]


def test_pieces_come_before_their_batch_is_complete(stand_in):
    with stand_in(Pool()) as stream:
        stream.submit("only", request_of(0, 5))
        complete = [arrival.complete for arrival in stream.arrivals()]
    assert len(complete) > 1 and complete == [False] * (len(complete) - 1) + [True]


def test_a_consumer_that_waits_for_something_else_too_looks_now_and_then(stand_in):
    found = list[Any]()
    with stand_in(Pool()) as stream:
        for arrival in stream.arrivals(beside=lambda: len(found) < 3):
            found.append(None if arrival is None else arrival.number)
            if len(found) == 2:
                number = stream.submit("later", request_of(0, 1))
    assert found[:2] == [None, None] and set(found[2:]) <= {None, number} and number in found


def test_a_consumer_that_waits_for_something_else_too_looks_once_each_time(stand_in, monkeypatch):
    pool = Pool()
    looks = list[float | None]()

    def wait(references: list[Any], num_returns: int, timeout: float | None = None) -> tuple[list[Any], list[Any]]:
        looks.append(timeout)
        return [], references

    monkeypatch.setattr(pool, "wait", wait)
    with stand_in(pool) as stream:
        stream.submit("only", request_of(0, 1))
        arrivals = stream.arrivals(beside=lambda: True)
        assert [next(arrivals) for _ in range(3)] == [None] * 3
    assert looks == [generation.BESIDE_SECONDS] * 3


def test_what_has_begun_earlier_goes_ahead_of_batches_that_wait(stand_in):
    pool = Pool()
    with stand_in(pool, bound=1) as stream:
        names = {stream.submit(name, request_of(0, size), ahead=size > 2): name for size, name in SIZES}
        order = [names[arrival.number] for arrival in stream.arrivals() if arrival.complete]
    assert order == ["first", "late", "later", "second"], "among themselves they keep their order"
    assert pool.ahead == [False, True, True, False], "nor does it wait behind those of others"


def test_an_engine_with_a_newer_driver_is_called_again_in_its_term(stand_in):
    pool = Pool(refusals={1})
    with stand_in(pool, newest=2) as stream:
        stream.submit("only", request_of(0, 3))
        assert [tag for tag, _ in stream.results()] == ["only"]
    assert (len(pool.asked), pool.released) == (1, [1]), "the same engine must be called again, without another grant"


def test_a_refusal_that_no_newer_driver_explains_is_an_error(stand_in):
    pool = Pool(refusals={1})
    with pytest.raises(FencedError), stand_in(pool) as stream:
        stream.submit("only", request_of(0, 3))
        list(stream.results())
    assert pool.forgotten == ["controller-0"]


def test_an_engine_that_leaves_responses_out_is_an_error(stand_in):
    pool = Pool(drops_the_last=True)
    with pytest.raises(InfrastructureError, match=r"^rollout-0\b.*\b2 of"), stand_in(pool) as stream:
        stream.submit("only", request_of(0, 4))
        list(stream.results())


def test_an_engine_that_answers_twice_is_an_error(stand_in, monkeypatch):
    pool = Pool()
    piece = next(pool.virtual.stream(request_of(0, 4)))
    monkeypatch.setattr(Pool, "_stream", lambda *_: Pieces(iter([piece, piece])))
    with pytest.raises(InfrastructureError, match=GeneratePiece.__name__), stand_in(pool) as stream:
        stream.submit("only", request_of(0, 4))
        list(stream.results())
