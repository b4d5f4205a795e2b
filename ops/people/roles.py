"""What each role may do: the one table that the dashboard, the API and the command line obey.

Pure. Consumes a role and a permission; produces whether the one includes the other, and the refusal if it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Permission(StrEnum):
    """What a route or a command needs.

    READ: look at runs. OPERATE: start, stop, resume, fork, roll back, queue, evaluate, annotate; the service group.
    APPROVE: approve, reject, promote. ADMINISTER: delete runs; manage users and tokens. AUTHOR: name code, files, addresses and
    secrets in specs that are sent over HTTP; an admin has it, and it can be granted to anyone who may operate.
    """

    READ = "read"
    OPERATE = "operate"
    APPROVE = "approve"
    ADMINISTER = "administer"
    AUTHOR = "author"


class Role(StrEnum):
    """What a person is, from the least to the most powerful."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


ALLOWED: Mapping[Role, frozenset[Permission]] = MappingProxyType(
    {
        Role.VIEWER: frozenset({Permission.READ}),
        Role.OPERATOR: frozenset({Permission.READ, Permission.OPERATE}),
        Role.APPROVER: frozenset({Permission.READ, Permission.OPERATE, Permission.APPROVE}),
        Role.ADMIN: frozenset(Permission),
    }
)
"""The permissions of each role."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person or a program that acts.

    name: what the audit chain records.
    is_author: whether the permission to author was granted beside the role.
    """

    name: str
    role: Role
    is_author: bool = False

    @property
    def permissions(self) -> frozenset[Permission]:
        """What the person may do. A grant counts only beside a role that may operate."""
        held = ALLOWED[self.role]
        return held | {Permission.AUTHOR} if self.is_author and Permission.OPERATE in held else held


def may(role: Role, permission: Permission) -> bool:
    """Returns True if the role includes the permission."""
    return permission in ALLOWED[role]


def held_roles(role: Role) -> tuple[Role, ...]:
    """Returns the roles whose permissions a role includes, its own among them."""
    return tuple(each for each in Role if ALLOWED[each] <= ALLOWED[role])


def lesser(first: Role, second: Role) -> Role:
    """Returns the role that may do less."""
    return first if ALLOWED[first] <= ALLOWED[second] else second


def least_role(permission: Permission) -> Role:
    """Returns the least powerful role that includes the permission."""
    return min((role for role in Role if may(role, permission)), key=lambda role: len(ALLOWED[role]))


def refusal(person: Person, permission: Permission) -> str:
    """Returns why a person may not do something."""
    return f"{person.name} has the role {person.role}; this needs the role {least_role(permission)}"
