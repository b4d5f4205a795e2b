"""Work that fails on one rank fails on all: with the class and the text of the failure, and without waiting."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.engines.train.tables import ThreadCollective, on_threads
from yatt_core.engines.train.ranks.by_all import by_all
from yatt_core.engines.train.ranks.collective import Collective
from yatt_core.errors import (
    AwayError,
    ConfigurationError,
    DataError,
    FencedError,
    InfrastructureError,
    TooLongError,
    YattError,
)
from yatt_core.planning.shape import UnknownShapeError

RANKS = 3


def outcomes(failures: dict[int, Exception]) -> list[Exception | int]:
    """Returns what each rank finds, or the error that it raises. failures: what the work of some ranks raises."""

    def run(group: ThreadCollective) -> Exception | int:
        def work() -> int:
            if group.rank in failures:
                raise failures[group.rank]
            return group.rank

        try:
            return by_all(group, work)
        except (YattError, KeyError) as error:
            return error

    return on_threads(RANKS, run)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (AwayError("judge is away: asleep"), AwayError),
        (DataError("damaged"), DataError),
        (FencedError("a newer term"), FencedError),
        (TooLongError("too long"), TooLongError),
        (YattError("an error"), YattError),
        (UnknownShapeError("not in the errors' module"), ConfigurationError),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_all_ranks_raise_the_error_of_one(failure: YattError, kind: type[YattError]) -> None:
    found = outcomes({1: failure})
    assert found[1] is failure
    for other in (found[0], found[2]):
        assert (type(other), str(other)) == (kind, str(failure))


def test_an_error_of_arrow_is_one_of_data() -> None:
    found = outcomes({2: pa.ArrowInvalid("bad column")})
    assert [(type(one), str(one)) for one in found] == [(DataError, "Arrow: bad column")] * RANKS


def test_an_unexpected_error_leaves_no_rank_waiting() -> None:
    unexpected = KeyError("a bug")
    first, second, third = outcomes({1: unexpected})
    assert second is unexpected
    for other in (first, third):
        assert isinstance(other, InfrastructureError) and "rank 1" in str(other)


def test_of_several_errors_those_without_one_raise_the_first() -> None:
    found = outcomes({1: DataError("one"), 2: AwayError("other is away: gone")})
    assert [(type(one), str(one)) for one in found] == [
        (DataError, "one"),
        (DataError, "one"),
        (AwayError, "other is away: gone"),
    ]


def test_without_an_error_each_rank_has_what_it_found() -> None:
    assert outcomes({}) == [0, 1, 2]
    assert by_all(Collective(), lambda: "alone") == "alone"
