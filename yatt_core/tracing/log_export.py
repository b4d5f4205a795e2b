"""Sends YATT's log records by OTLP, with the trace and span in which they were written. Secrets are redacted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from yatt_core.logs import redact
from yatt_core.tracing.spans import current_place

if TYPE_CHECKING:
    # Not at run time: it imports OpenTelemetry, which is optional.
    from yatt_core.tracing.otlp import OtlpOutput

LOGGERS = "yatt_core"
LONGEST = 2_000
_NAME = "yatt-otlp"


class _OtlpHandler(logging.Handler):
    """Queues records; neither waits nor fails."""

    def __init__(self, output: OtlpOutput, actor: str) -> None:
        super().__init__(logging.INFO)
        self.set_name(_NAME)
        self._output = output
        self._actor = actor

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record."""
        from yatt_core.tracing.otlp import LogLine

        text = redact(record.getMessage())[:LONGEST]
        attributes = {"yatt.logger": record.name, "yatt.actor": self._actor}
        self._output.line(
            LogLine(
                at=int(record.created * 1e9),
                level=record.levelno,
                text=text,
                place=current_place(),
                attributes=attributes,
            )
        )


def export_logs(output: OtlpOutput, actor: str) -> None:
    """Begins to send the log records of this process, unless it does already."""
    logger = logging.getLogger(LOGGERS)
    if not any(handler.get_name() == _NAME for handler in logger.handlers):
        logger.addHandler(_OtlpHandler(output, actor))


def keep_logs() -> None:
    """Stops sending log records."""
    logger = logging.getLogger(LOGGERS)
    for handler in [handler for handler in logger.handlers if handler.get_name() == _NAME]:
        logger.removeHandler(handler)
