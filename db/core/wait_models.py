"""The table of what runs wait for outside of YATT.

Times are milliseconds since 1970 (UTC) by the database's clock.
"""

from __future__ import annotations

from sqlalchemy.orm import Mapped

from db.core.base import Base, run_key


class RunWait(Base):
    """What a run waits for; one that waits for nothing has no row.

    term: of the driver that waits. The row of a driver that was lost says nothing.
    since: when it was found to be away.
    next_try_at: when the driver will look whether it is back.
    returned_at: when the run gave its devices back; null while it holds them.
    asked_at: when somebody asked for a try at once; null once the driver has seen it.
    """

    __tablename__ = "run_wait"

    run: Mapped[str] = run_key()
    term: Mapped[int]
    dependency: Mapped[str]
    reason: Mapped[str]
    since: Mapped[int]
    next_try_at: Mapped[int]
    tries: Mapped[int]
    returned_at: Mapped[int | None]
    asked_at: Mapped[int | None]
