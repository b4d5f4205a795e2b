"""`yatt token`: who may change runs over HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.options import HomeOption, Output, OutputOption, examples
from ops.presentation.output import message, write, write_json, write_table

if TYPE_CHECKING:
    from pathlib import Path

    from ops.dashboard.tokens import TokenStore

token_app = typer.Typer(no_args_is_help=True, help="Say who may stop, resume and change runs with the dashboard.")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Who holds it: it stands in the audit chain.")]

CREATE = ("yatt token create alice", "yatt token create ci -o json")
LIST, REVOKE = ("yatt token list", "yatt token list -o json"), ("yatt token revoke alice",)


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.add_typer(token_app, name="token", epilog=examples(CREATE[0], LIST[0], REVOKE[0]))


def _store(home: Path | None) -> TokenStore:
    from flows.run.home import Home
    from ops.dashboard.tokens import TokenStore

    return TokenStore(Home.locate(home).folder)


@token_app.command(epilog=examples(*CREATE))
def create(name: NameArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Make a token and print it, this once: only its digest is kept."""
    token = _store(home).create(name)
    if output is Output.JSON:
        write_json({"name": name, "token": token})
        return
    write(token)
    message("this is the only time that it is shown: sign in with it, or send it as `Authorization: Bearer TOKEN`")


@token_app.command(name="list", epilog=examples(*LIST))
def list_tokens(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """List the tokens: names, and when they were made."""
    tokens = _store(home).all()
    if output is Output.JSON:
        write_json({"tokens": [{"name": token.name, "created_at": token.created_at} for token in tokens]})
        return
    rows = [(token.name, time.strftime("%Y-%m-%d %H:%M", time.localtime(token.created_at / 1000))) for token in tokens]
    write_table(("name", "made"), rows)


@token_app.command(epilog=examples(*REVOKE))
def revoke(name: NameArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Make a token worthless at once, with all sessions that were opened with it."""
    _store(home).revoke(name)
    if output is Output.JSON:
        write_json({"name": name, "revoked": True})
    else:
        write(f"the token of {name} is revoked")
