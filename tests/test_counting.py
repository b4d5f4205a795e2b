"""Numbers of things in words."""

from __future__ import annotations

import pytest

from yatt_core.counting import many


@pytest.mark.parametrize(
    ("count", "what", "said"),
    [
        (0, "alarm", "0 alarms"),
        (1, "alarm", "1 alarm"),
        (2, "crash", "2 crashes"),
        (3, "copy", "3 copies"),
        (2, "day", "2 days"),
        (1_234_567, "row", "1,234,567 rows"),
        (1.0, "epoch", "1 epoch"),
        (0.5, "new alias", "0.5 new aliases"),
    ],
)
def test_one_is_singular(count: float, what: str, said: str) -> None:
    assert many(count, what) == said


def test_the_verb_agrees() -> None:
    assert many(1, "run", "are sound", "is sound") == "1 run is sound"
    assert many(2, "run", "are sound", "is sound") == "2 runs are sound"
