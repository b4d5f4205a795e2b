"""Where the price file is, and whether a spec's budget can be checked with it."""

from __future__ import annotations

import os
from pathlib import Path

from flows.run.home import Home
from yatt_core.costs.prices import PriceFile, read_prices
from yatt_core.errors import ConfigurationError
from yatt_core.spec import RunSpec

VARIABLE = "YATT_PRICES"
NAME = "prices.yaml"


def price_path(home: Home) -> Path | None:
    """Returns the price file: $YATT_PRICES, else `prices.yaml` in the home folder; None if there is none."""
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else home.folder / NAME
    return path if named or path.exists() else None


def home_prices(home: Home) -> PriceFile | None:
    """Returns the prices; None if there is no price file. Raises `ConfigurationError`."""
    path = price_path(home)
    return None if path is None else read_prices(path)


def check_prices(home: Home, spec: RunSpec) -> None:
    """Raises `ConfigurationError` if the price file is invalid, or missing although a budget needs it."""
    if home_prices(home) is None and spec.guards.budget.needs_prices:
        key = "cost" if spec.guards.budget.cost is not None else "carbon_kg"
        raise ConfigurationError(
            f"guards.budget.{key}: there are no prices to check it with; write {home.folder / NAME}, or name another file "
            f"in {VARIABLE} (docs/costs.md)"
        )
