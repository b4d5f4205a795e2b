"""The audit chain of what concerns the home and no run that exists.

Times are milliseconds since 1970 (UTC) by the database's clock.
"""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from db.core.base import Base, ChainLink, key_part


class HomeEvent(ChainLink, Base):
    """A link of the chain; its hash covers its contents and the hash of the previous link."""

    __tablename__ = "home_event"

    seq: Mapped[int] = key_part()
