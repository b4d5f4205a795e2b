"""Words for the queue, shared by its command and its page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Priced(Protocol):
    """A pool with a price."""

    @property
    def price(self) -> float | None: ...
    @property
    def currency(self) -> str | None: ...
    @property
    def spot(self) -> bool: ...


class Costed(Protocol):
    """A run with a cost."""

    @property
    def cost(self) -> float | None: ...
    @property
    def currency(self) -> str | None: ...
    @property
    def cost_error(self) -> float | None: ...


def pool_text(pool: Priced) -> str:
    """Returns a pool's kind and price."""
    price = "" if pool.price is None else f"{pool.price:g} {pool.currency} a device and hour"
    return ", ".join(part for part in ("spot" if pool.spot else "", price) if part)


def cost_text(entry: Costed) -> str:
    """Returns a run's cost, predicted or actual, and the error of its first prediction."""
    if entry.cost is None:
        return ""
    error = "" if entry.cost_error is None else f" (predicted within {entry.cost_error:.0%})"
    return f"{entry.cost:.2f} {entry.currency or ''}{error}".rstrip()


def when_text(at: int | None) -> str:
    """Returns a time in UTC, to the minute."""
    return "" if at is None else datetime.fromtimestamp(at / 1000, UTC).strftime("%m-%d %H:%M")
