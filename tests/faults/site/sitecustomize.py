"""Adds engine faults; every Python process below a Ray head with this folder on its path loads this module first."""

from __future__ import annotations

from tests.after_import import after_import
from tests.faults.engines import add_faults

after_import({"yatt_core.engines.registry": add_faults})
