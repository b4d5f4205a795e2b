"""`yatt token`: manages the tokens with which people and programs act over HTTP, and on the command line as YATT_TOKEN."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from flows.driver.windows import parse_duration
from flows.run.home import Home
from ops.people.roles import Person, Role, lesser
from ops.people.tokens import NamedToken, TokenStore
from ops.presentation.columns import Column, Columns, MomentCell
from ops.presentation.output import message, write, write_json, write_list
from ops.presentation.words import moment
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.errors import ConfigurationError

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the token, and of its holder in the audit chain.")
]

CREATE = (
    "yatt token create alice --role approver",
    "yatt token create ci --role operator --expires 30d -o json",
    "yatt token create alice-laptop --user alice",
)
LIST = ("yatt token list", "yatt token list -o json")
REVOKE = ("yatt token revoke alice",)
app = typer.Typer(
    name="token",
    epilog=examples(CREATE[0], LIST[0], REVOKE[0]),
    no_args_is_help=True,
    help="Manage the tokens with which people and programs act on runs.",
)


def _store(home: Path | None) -> TokenStore:
    return TokenStore(Home.locate(home).folder)


Held = tuple[NamedToken, Person | None]
"""A token, and who holds it; None if its user is gone."""


def _expires(held: Held) -> str:
    ends = held[0].expires_at
    if ends is None:
        return "never"
    return moment(ends) + (" (expired)" if ends <= time.time() * 1000 else "")


TOKENS: Columns[Held] = (
    Column("name", lambda held: held[0].name),
    Column("acts as", lambda held: held[0].holder),
    Column("role", lambda held: held[1].role if held[1] else "invalid: no such user"),
    Column("created", lambda held: MomentCell(held[0].created_at)),
    Column("expires", _expires),
)


@app.command(epilog=examples(*CREATE))
def create(
    name: NameArgument,
    role: Annotated[
        Role | None,
        typer.Option("--role", help="What its holder may do. Default: the role of --user, else operator."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="Lifetime, such as 12h or 30d. Default: no limit."),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="The user for whom it acts, whose role limits the token's.")
    ] = "",
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Create a token and print it. It is shown only once; only its digest is stored."""
    given = role or (Role.ADMIN if user else Role.OPERATOR)  # a user's own role is the limit
    lifetime = None if expires is None else parse_duration(expires, "--expires").total_seconds()
    store = _store(home)
    owner = store.users.find(user) if user else None
    if owner is not None and role is not None and lesser(role, owner.role) is not role:
        raise ConfigurationError(
            f"--role {role}: {user} is {owner.role}, and a token for {user} can do no more than that"
        )
    token = store.create(name, given, lifetime, user)
    if output is Output.JSON:
        person = store.person_of(token)
        write_json({"name": name, "role": person and person.role, "token": token})
        return
    write(token)
    message("the token is not shown again: sign in with it, or send it as `Authorization: Bearer TOKEN`")


@app.command(name="list", epilog=examples(*LIST))
def list_tokens(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """List the tokens by name, with their roles, users, and times of creation and expiry."""
    store = _store(home)
    tokens = [(token, store.holder_of(token)) for token in store.all()]
    if output is Output.JSON:
        shown = ("name", "user", "created_at", "expires_at")
        rows = [{key: getattr(token, key) for key in shown} | {"role": who and who.role} for token, who in tokens]
        write_json({"tokens": rows})
        return
    write_list(TOKENS, tokens)


@app.command(epilog=examples(*REVOKE))
def revoke(name: NameArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Revoke a token immediately, and end all sessions opened with it."""
    _store(home).revoke(name)
    if output is Output.JSON:
        write_json({"name": name, "revoked": True})
    else:
        write(f"the token of {name} is revoked")
