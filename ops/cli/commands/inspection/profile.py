"""The part of `yatt show` that shows where the time of iterations goes, as tables, JSON or a flame graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.reports.profile import Profile
from flows.run.home import Home
from ops.presentation.flame import SUFFIXES, collapsed, page, picture
from ops.presentation.output import message, write_json
from ops.presentation.profile_words import NOT_RECORDED, iterations_text, profile_facts, write_profile_text
from ops.terminal.options import Output
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from db.ledger import Ledger

LAST = 10
"""How many of the newest iterations are shown by default."""


def check_options(profile: bool, iteration: int | None, last: int | None, flame: Path | None) -> None:
    """Raises `ConfigurationError` for options that do not go together, or a picture that cannot be written."""
    given = [
        name for name, value in (("--iteration", iteration), ("--last", last), ("--flame", flame)) if value is not None
    ]
    if given and not profile:
        raise ConfigurationError(f"{', '.join(given)}: add --profile")
    if iteration is not None and last is not None:
        raise ConfigurationError("--iteration, --last: only one of them can be given")
    if flame is not None and flame.suffix.lower() not in SUFFIXES:
        expected = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        raise ConfigurationError(f"--flame {flame}: expected a name that ends in {expected}")
    if flame is not None and not flame.resolve().parent.is_dir():
        raise ConfigurationError(f"--flame {flame}: there is no folder {flame.resolve().parent}")


def show_profile(
    ledger: Ledger, home: Home, run: str, iteration: int | None, last: int | None, flame: Path | None, output: Output
) -> None:
    """Shows the profile of a run, and writes its flame graph if there is a file for it.

    Raises `ConfigurationError` if the iteration is not committed, or if there is nothing to draw.
    """
    from ops.queries.profile import run_profile

    profile = run_profile(ledger=ledger, home=home, run=run, iteration=iteration, last=LAST if last is None else last)
    if flame is not None:
        _write_flame(flame, run, profile)
    if output is Output.JSON:
        write_json({"run": run, **profile_facts(profile)})
    else:
        write_profile_text(run, profile)


def _write_flame(path: Path, run: str, profile: Profile) -> None:
    if not profile.recorded:
        where = iterations_text(profile.not_recorded) if profile.not_recorded else "no iteration"
        raise ConfigurationError(f"--flame {path}: nothing to draw: {where}: {NOT_RECORDED}")
    suffix = path.suffix.lower()
    if suffix == ".html":
        text = page(run, profile)
    elif suffix == ".svg":
        text = picture(run, profile)
    else:
        text = collapsed(profile)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--flame {path}: cannot be written: {error.strerror or error}") from None
    message(f"written: {path}")
