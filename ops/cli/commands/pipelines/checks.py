"""The entrypoint of pipelines that earlier versions have deployed; workers import it by this name.

Nothing else uses it: new deployments name `ops.pipelines.checks`.
"""

from __future__ import annotations

from ops.pipelines.checks import check

__all__ = ["check"]
