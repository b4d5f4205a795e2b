"""What each command needs: the permission that the caller's role must include.

Pure. A command that is missing here can only be used by admins; a test names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ops.people.roles import Permission

READ = Permission.READ
OPERATE = Permission.OPERATE
APPROVE = Permission.APPROVE
ADMINISTER = Permission.ADMINISTER
READING = (
    *("init", "check", "plan", "schema", "doctor"),
    *(
        "lineage",
        "runs",
        "show",
        "compare",
        "du",
        "watch",
        "open",
        "alarms",
        "logs",
        "rollouts",
        "scores",
        "aliases",
        "status",
    ),
    *(
        "placement explain",
        "placement replay",
        "placement gantt",
        "soup show",
        "audit verify",
        "audit home",
        "audit weights",
    ),
    *("approvals", "costs", "evaluations", "sweep show", "export", "dashboard"),
    *("pipeline show", "pipeline list", "backup list", "backup verify"),
)
OPERATING = (
    *(
        "train",
        "resume",
        "stop",
        "checkpoint",
        "deploy",
        "fetch",
        "window",
        "fork",
        "rollback",
        "retry",
        "soup run",
        "soup resume",
        "soup merge",
    ),
    *("sweep run", "sweep resume", "queue submit", "queue priority", "queue pause", "queue resume", "queue remove"),
    *("queue devices", "queue init", "queue serve", "pipeline backfill", "evaluate", "up", "down"),
    *("maintain", "migrate", "upgrade"),
)
APPROVING = ("approve", "reject", "promote", "pipeline run", "pipeline resume", "pipeline deploy")
ADMINISTERING = (
    *("rm", "delete", "archive", "backup create", "backup prune", "restore"),
    *("token create", "token list", "token revoke"),
    *("user add", "user list", "user role", "user grant", "user revoke", "user remove"),
)
COMMANDS: Mapping[str, Permission] = MappingProxyType(
    {
        **dict.fromkeys(READING, READ),
        **dict.fromkeys(OPERATING, OPERATE),
        **dict.fromkeys(APPROVING, APPROVE),
        **dict.fromkeys(ADMINISTERING, ADMINISTER),
    }
)
"""The permission of each command."""


def permission_of(path: tuple[str, ...]) -> Permission:
    """Returns the permission that a command needs."""
    return COMMANDS.get(" ".join(path), ADMINISTER)
