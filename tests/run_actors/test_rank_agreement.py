"""What the trainer's ranks must agree on: the figures of an evaluation, bit for bit."""

from __future__ import annotations

import pytest

from yatt_core.errors import InfrastructureError
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import RowsReceipt
from yatt_core.run_actors.rank_files import agreed_evaluation


def receipts_of(*values: float) -> list[RowsReceipt]:
    key = WorkKey("tried", 0, 3, "evaluate")
    return [RowsReceipt(key, 0, {"evaluation/loss": value, "evaluation/accuracy": 1.0}) for value in values]


@pytest.mark.parametrize("value", [0.1, float("nan")])
def test_ranks_that_agree_have_one_receipt(value: float) -> None:
    same = receipts_of(value, float(str(value)))
    assert agreed_evaluation(same) is same[0]


def test_ranks_that_differ_in_a_bit_are_an_error() -> None:
    with pytest.raises(
        InfrastructureError, match=r"iteration 3: the trainer's ranks disagree on the evaluation: .*0.1"
    ):
        agreed_evaluation(receipts_of(0.1, 0.1 + 2**-56))
