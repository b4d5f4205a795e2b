"""Roles on the command line: every command declares what it needs, and each role is refused exactly what it does not include."""

from __future__ import annotations

import os
from typing import Any

import click
import pytest
from typer.main import get_command

from flows.run.home import Home
from ops.cli.command_table import COMMANDS, permission_of
from ops.cli.main import app
from ops.people.caller import TOKEN_VARIABLE
from ops.people.roles import ALLOWED, Role
from ops.people.tokens import TokenStore
from ops.people.users import UserStore
from ops.terminal import people
from tests.ops.conftest import Yatt
from yatt_core.errors import ConfigurationError


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    below = getattr(command, "commands", None)
    if below is None:
        return {" ".join(path): command}
    return {name: leaf for each, sub in below.items() for name, leaf in leaves(sub, (*path, each)).items()}


def test_every_command_declares_what_it_needs() -> None:
    assert COMMANDS.keys() == leaves(get_command(app)).keys()


@pytest.mark.parametrize("role", Role)
def test_each_role_is_refused_exactly_what_it_does_not_include(
    home: Home, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    """The real commands, each replaced by one that only reports that it was reached."""
    monkeypatch.setenv("YATT_HOME", str(home.folder))
    monkeypatch.setenv(TOKEN_VARIABLE, TokenStore(home.folder).create("someone", role))
    program = get_command(app)
    commands = leaves(program)
    for command in commands.values():
        command.invoke = lambda context: "reached"
    people.guard(program, permission_of)
    for name, command in commands.items():
        context = click.Context(click.Command(name))
        if COMMANDS[name] in ALLOWED[role]:
            assert command.invoke(context) == "reached", name
        else:
            with pytest.raises(
                ConfigurationError, match=f"yatt {name}: someone has the role {role}; this needs the role"
            ):
                command.invoke(context)


def test_a_refused_command_does_nothing_and_ends_with_code_2(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    UserStore(home.folder).add("alice", Role.OPERATOR, [people.calling().person.name])
    refused = yatt("user", "role", "alice", "admin")
    assert refused.code == 2 and "alice has the role operator; this needs the role admin" in refused.err
    assert UserStore(home.folder).all()[0].role is Role.OPERATOR
    assert yatt("runs").code == 2 and "no runs here" in yatt("runs").err
    monkeypatch.setenv(TOKEN_VARIABLE, "yatt_guess")
    assert "unknown" in yatt("stop", "latest").err


def test_the_role_is_that_of_the_home_given_after_the_command(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = home.folder.with_name("elsewhere")
    monkeypatch.setenv(TOKEN_VARIABLE, TokenStore(elsewhere).create("vera", Role.VIEWER))
    said = yatt("rm", "x", "--home", str(elsewhere)).err
    assert "vera has the role viewer" in said


def test_a_caller_who_is_known_cannot_act_under_another_name(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TokenStore(home.folder).create("alice", Role.ADMIN))
    refused = yatt("rm", "x", "--by", "bob", "--yes")
    assert refused.code == 2 and "says that alice deletes the runs; leave --by out" in refused.err


def test_users_are_added_listed_changed_and_removed(yatt: Yatt) -> None:
    added = {"name": "alice", "role": "viewer", "logins": ["x1"]}
    assert yatt("user", "add", "alice", "--role", "viewer", "--login", "x1", "-o", "json").document == added
    assert yatt("user", "role", "alice", "approver", "-o", "json").document == {"name": "alice", "role": "approver"}
    listed = yatt("user", "list", "-o", "json").document["users"]
    assert [(user["name"], user["role"], user["logins"]) for user in listed] == [("alice", "approver", ["x1"])]
    made = yatt("token", "create", "a1", "--user", "alice", "--expires", "30d", "-o", "json").document
    assert made["role"] == "approver"
    more = yatt("token", "create", "b", "--user", "alice", "--role", "admin")
    assert more.code == 2 and "--role admin: alice is" in more.err and "no more than that" in more.err
    [token] = yatt("token", "list", "-o", "json").document["tokens"]
    assert token["user"] == "alice" and token["expires_at"] - token["created_at"] == 30 * 86_400_000
    removed = yatt("user", "remove", "alice", "-o", "json").document
    assert removed == {"name": "alice", "removed": True, "revoked_tokens": ["a1"]}
    assert "alice" in yatt("user", "remove", "alice").err
    for wrong in (("token", "create", "b", "--expires", "soon"), ("token", "create", "b", "--role", "king")):
        assert yatt(*wrong).code == 2


def test_what_a_command_starts_does_not_inherit_the_token(
    yatt: Yatt, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Actors and reward functions have the environment of the driver."""
    token = TokenStore(home.folder).create("alice", Role.ADMIN)
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    seen: list[tuple[str | None, str | None]] = []

    def look(*arguments: object, **options: object) -> tuple[()]:
        seen.append((os.environ.get(TOKEN_VARIABLE), people.identity().get(TOKEN_VARIABLE)))
        return ()

    monkeypatch.setattr(UserStore, "all", look)
    assert yatt("user", "list").code == 0
    assert seen[-1] == (None, token) and os.environ[TOKEN_VARIABLE] == token
