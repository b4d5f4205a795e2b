"""The command line as the installed script calls it."""

from __future__ import annotations

from tests.ops.conftest import home, trials, yatt  # noqa: F401
