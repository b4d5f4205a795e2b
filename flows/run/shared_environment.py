"""Whether a Ray head that another process has started gives its workers the environment that a run's own head would.

Workers have the environment of their head, and that of the process that started it: keys of judges' endpoints, caches, GPUs,
PYTHONPATH. Consumes this process's environment. Produces digests by variable, which two processes compare. What only a
terminal, a session of the system, a driver or the servers of the service group need is left out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from yatt_core.models.offline import OFFLINE, SAID
from yatt_core.python_path import absolute_entries

OF_SERVERS = ("MLFLOW_", "PREFECT_")
"""Beginnings of variables that trackers, drivers and servers read."""
OF_SESSIONS = ("DBUS_", "GNOME_", "SSH_", "SYSTEMD_", "TERM", "TMUX", "VTE_", "XDG_SESSION_")
"""Beginnings of variables that a terminal or the system's session manager sets."""
UNREAD = frozenset(
    {
        # a terminal's, or a session's
        "COLORTERM", "COLUMNS", "DISPLAY", "FORCE_COLOR", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "LS_COLORS", "MANAGERPID",
        "NOTIFY_SOCKET", "NO_COLOR", "OLDPWD", "PROMPT_COMMAND", "PS1", "PWD", "SHLVL", "STY", "TTY", "VIRTUAL_ENV_PROMPT",
        "WAYLAND_DISPLAY", "WINDOW", "WINDOWID", "_",
        # what drivers and services read
        "YATT_BENCHMARK_START", "YATT_DASHBOARD_URL", "YATT_HOME", "YATT_LEDGER", "YATT_NOTIFY", "YATT_PREFECT_TEMPLATES",
        "YATT_PRICES", "YATT_REQUIRE_SIGN_IN", "YATT_SHARED_CLUSTER", "YATT_SUPERVISED_BY", "YATT_TOKEN", "YATT_WARM_HEADS",
        # what YATT itself, Ray or matplotlib sets, in every process that needs it
        "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "MPLCONFIGDIR", "PYTHONDONTWRITEBYTECODE", "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN_PATH", "RAY_CLIENT_MODE", "RAY_ENABLE_AUTO_CONNECT", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",
        "RAY_USAGE_STATS_ENABLED", "RAY_task_events_report_interval_ms", "VLLM_NO_USAGE_STATS", SAID,
    }
)  # fmt: skip
CORES = "(cores)"
"""Stands among the variables for the cores that a process may use, which workers inherit too."""


def environment_digests() -> dict[str, str]:
    """Returns a digest of each variable that this process's workers would have, without its value; and of its cores."""
    environment = absolute_entries(os.environ, Path.cwd())
    if SAID in environment:
        environment[OFFLINE] = environment[SAID]
    if not environment.get(OFFLINE):
        environment.pop(OFFLINE, None)
    kept = {name: value for name, value in environment.items() if not _is_unread(name)}
    kept[CORES] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {name: hashlib.sha256(os.fsencode(value)).hexdigest() for name, value in kept.items()}


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Returns the names of the variables in which two environments differ, sorted."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _is_unread(name: str) -> bool:
    return name in UNREAD or name.startswith((*OF_SERVERS, *OF_SESSIONS))
