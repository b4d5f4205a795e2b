"""Puts roles of devices, and how they change, into words."""

from __future__ import annotations

from yatt_core.placement.actions import JUDGE, ROLE_NAMES, ROLLOUT

HOW = {
    "start": "joins the iteration late",
    "empty": "empty",
    "migrate": "its sequences move to others",
    "drain": "it works its sequences off first",
}


def role_name(role: str) -> str:
    """A role in words."""
    return ROLE_NAMES.get(role, "going over")


def roles_text(roles: str) -> str:
    """How many roll out and judge: 6 R + 2 J."""
    counts = ((role, roles.count(role)) for role in (ROLLOUT, JUDGE))
    return " + ".join(f"{count} {role}" for role, count in counts if count)
