"""`yatt user`: manages users, their roles and permissions, and the login names under which they use the command line."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.run.home import Home
from ops.people.roles import Role
from ops.people.tokens import TokenStore
from ops.people.users import User, UserStore
from ops.presentation.columns import Column, Columns, MomentCell
from ops.presentation.output import message, write, write_json, write_list
from ops.terminal.options import HomeOption, Output, OutputOption, examples

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user, recorded in the audit chain.")]
RoleHelp = "viewer reads; operator also drives runs; approver also approves and promotes; admin may do everything."

ADD = ("yatt user add alice --role approver", "yatt user add bob --role operator --login bob --login bsmith")
LIST = ("yatt user list", "yatt user list -o json")
ROLE = ("yatt user role bob approver",)
GRANT = ("yatt user grant bob author",)
REVOKE = ("yatt user revoke bob author",)
REMOVE = ("yatt user remove bob", "yatt user remove bob -o json")
app = typer.Typer(
    name="user",
    epilog=examples(ADD[0], ROLE[0], LIST[0], REMOVE[0]),
    no_args_is_help=True,
    help="Manage users and their roles: viewer, operator, approver, admin.",
)


class Grantable(StrEnum):
    """The permissions that can be granted beside a role."""

    AUTHOR = "author"


PermissionArgument = Annotated[
    Grantable,
    typer.Argument(
        metavar="PERMISSION",
        help="author: name code, files, addresses and secrets in specs that are sent over HTTP; needs the role operator.",
    ),
]


def _store(home: Path | None) -> UserStore:
    return UserStore(Home.locate(home).folder)


USERS: Columns[User] = (
    Column("name", lambda user: user.name),
    Column("role", lambda user: user.role),
    Column("granted", lambda user: Grantable.AUTHOR if user.is_author else "-"),
    Column("logins", lambda user: ", ".join(user.logins) or "-"),
    Column("created", lambda user: MomentCell(user.created_at)),
)


@app.command(epilog=examples(*ADD))
def add(
    name: NameArgument,
    role: Annotated[Role, typer.Option("--role", help=RoleHelp)],
    logins: Annotated[
        list[str] | None,
        typer.Option(
            "--login", metavar="LOGIN", help="Login name on this machine; repeatable. Then roles apply to commands."
        ),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Add a user with a role."""
    store = _store(home)
    store.add(name, role, logins or ())
    if output is Output.JSON:
        write_json({"name": name, "role": role, "logins": logins or []})
        return
    write(f"{name} is {role}")
    message(f"to let {name} sign in to the dashboard: yatt token create {name}-1 --user {name}")


@app.command(name="list", epilog=examples(*LIST))
def list_users(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """List the users with their roles and login names."""
    users = _store(home).all()
    if output is Output.JSON:
        shown = ("name", "role", "is_author", "logins", "created_at")
        write_json({"users": [{key: getattr(user, key) for key in shown} for user in users]})
        return
    write_list(USERS, users)


@app.command(epilog=examples(*ROLE))
def role(
    name: NameArgument,
    role: Annotated[Role, typer.Argument(metavar="ROLE", help=RoleHelp)],
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Change a user's role, which takes effect at once, also for open sessions and tokens."""
    _store(home).set_role(name, role)
    if output is Output.JSON:
        write_json({"name": name, "role": role})
    else:
        write(f"{name} is {role}")


@app.command(epilog=examples(*GRANT))
def grant(
    name: NameArgument,
    permission: PermissionArgument,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Grant a permission beside a user's role, which takes effect at once, also for open sessions and tokens."""
    _settle(home=home, name=name, permission=permission, granted=True, output=output)


@app.command(epilog=examples(*REVOKE))
def revoke(
    name: NameArgument,
    permission: PermissionArgument,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Withdraw a permission that was granted, at once."""
    _settle(home=home, name=name, permission=permission, granted=False, output=output)


def _settle(home: Path | None, name: str, permission: Grantable, granted: bool, output: Output) -> None:
    _store(home).set_author(name, granted)
    if output is Output.JSON:
        write_json({"name": name, "permission": permission, "granted": granted})
    else:
        write(f"{name} {'may' if granted else 'may no longer'} {permission}")


@app.command(epilog=examples(*REMOVE))
def remove(name: NameArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Remove a user, and revoke the tokens that act under this name."""
    store = _store(home)
    store.require(name)
    revoked = TokenStore(Home.locate(home).folder).revoke_all_of(name)
    store.remove(name)
    if output is Output.JSON:
        write_json({"name": name, "removed": True, "revoked_tokens": revoked})
    else:
        write(f"{name} is removed" + (f"; revoked tokens: {', '.join(revoked)}" if revoked else ""))
