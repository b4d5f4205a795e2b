"""All metrics that `ops.metrics.names` declares."""

from __future__ import annotations

from ops.metrics import names

METRICS = tuple(value for value in vars(names).values() if isinstance(value, names.MetricName))
