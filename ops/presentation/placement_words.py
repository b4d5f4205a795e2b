"""Words for the roles of devices and for changes between them."""

from __future__ import annotations

from yatt_core.placement.actions import JUDGE, ROLE_NAMES, ROLLOUT, TRAINING

HOW = {
    "start": "joins the iteration late",
    "empty": "empty",
    "migrate": "its sequences move to other instances",
    "drain": "it finishes its sequences first",
}


def role_name(role: str) -> str:
    """Returns a role's name for display."""
    return "trainer" if role == TRAINING else ROLE_NAMES.get(role, "switching")


def roles_text(roles: str) -> str:
    """Returns the number of instances in each role, such as 6 R + 2 J."""
    counts = ((role, roles.count(role)) for role in (ROLLOUT, JUDGE))
    return " + ".join(f"{count} {role}" for role, count in counts if count)
