"""What an evaluation on held-out rows has found, with the interval of its accuracy.

Consumes the receipt of an objective's evaluation. Produces its metrics. Pure.
"""

from __future__ import annotations

from yatt_core.evaluation.estimators import wilson_interval
from yatt_core.protocols.receipts import RowsReceipt

ACCURACY = "evaluation/accuracy"


def row_figures(receipt: RowsReceipt) -> dict[str, float]:
    """Returns the metrics of an evaluation; an accuracy over a number of rows has the bounds of its 95 % interval
    (`wilson_interval`).
    """
    figures = dict(receipt.metrics)
    if ACCURACY in figures and receipt.total:
        low, high = wilson_interval(figures[ACCURACY], receipt.total)
        figures |= {f"{ACCURACY}_low": low, f"{ACCURACY}_high": high}
    return figures
