"""Makes transformers quiet and offline when it is imported, for a process that imports ahead of those who would do it."""

from __future__ import annotations

from yatt_core.models.loading import quiet_transformers

quiet_transformers()
