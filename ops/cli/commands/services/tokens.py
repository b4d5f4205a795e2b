"""`yatt token`: manages the tokens of people and programs that may change runs over HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.options import HomeOption, Output, OutputOption, examples
from ops.presentation.output import message, write, write_json, write_table

if TYPE_CHECKING:
    from pathlib import Path

    from ops.people.tokens import TokenStore

token_app = typer.Typer(no_args_is_help=True, help="Manage the tokens that allow changing runs through the dashboard.")
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the token's holder, recorded in the audit chain.")
]

CREATE = ("yatt token create alice", "yatt token create ci -o json")
LIST, REVOKE = ("yatt token list", "yatt token list -o json"), ("yatt token revoke alice",)


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    app.add_typer(token_app, name="token", epilog=examples(CREATE[0], LIST[0], REVOKE[0]))


def _store(home: Path | None) -> TokenStore:
    from flows.run.home import Home
    from ops.people.tokens import TokenStore

    return TokenStore(Home.locate(home).folder)


@token_app.command(epilog=examples(*CREATE))
def create(name: NameArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Create a token and print it. It is shown only once; only its digest is stored."""
    token = _store(home).create(name)
    if output is Output.JSON:
        write_json({"name": name, "token": token})
        return
    write(token)
    message("the token is not shown again: sign in with it, or send it as `Authorization: Bearer TOKEN`")


@token_app.command(name="list", epilog=examples(*LIST))
def list_tokens(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """List the tokens by name, with their creation times."""
    tokens = _store(home).all()
    if output is Output.JSON:
        write_json({"tokens": [{"name": token.name, "created_at": token.created_at} for token in tokens]})
        return
    rows = [(token.name, time.strftime("%Y-%m-%d %H:%M", time.localtime(token.created_at / 1000))) for token in tokens]
    write_table(("name", "created"), rows)


@token_app.command(epilog=examples(*REVOKE))
def revoke(name: NameArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Revoke a token immediately, and end all sessions opened with it."""
    _store(home).revoke(name)
    if output is Output.JSON:
        write_json({"name": name, "revoked": True})
    else:
        write(f"the token of {name} is revoked")
