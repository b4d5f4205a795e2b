"""The audit chain of what concerns the home and no run that exists.

Times are milliseconds since 1970 (UTC) by the database's clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapped

from db.core.base import Base, key_part


class HomeEvent(Base):
    """A link of the chain; its hash covers its contents and the hash of the previous link."""

    __tablename__ = "home_event"

    seq: Mapped[int] = key_part()
    at: Mapped[int]
    kind: Mapped[str]
    body: Mapped[dict[str, Any]]
    prev_hash: Mapped[str]
    hash: Mapped[str]
