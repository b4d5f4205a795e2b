"""Makes the run that somebody asks for over HTTP, checked as `yatt train` checks it: `python -m ops.preflight.asked HOME`.

Consumes `apart.Asked` as JSON on standard input; produces the run, or the error, as JSON on standard output. Whatever
the spec's code prints goes to standard error. Errors quote contents of files only if all files that the spec names are in the
home; the server's log has them in full.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from db.core.errors import LedgerError
from db.ledger import Ledger
from flows.files.storage import store_of
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from ops.preflight.apart import ORIGIN, Asked, limit_memory
from ops.preflight.run import check_before_start
from yatt_core.code_files import fetch_code
from yatt_core.errors import ConfigurationError, FailureClass, YattError
from yatt_core.logs import redact
from yatt_core.naming import Named, named_in, permit_known
from yatt_core.rewards.process import reward_process
from yatt_core.spec import RunSpec, load_spec, override_spec

KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
WITHHELD = "the details may quote files outside of the home, and are in the log of the server"
REMEDY = (
    "this needs the permission to author (`yatt user grant NAME author`); without it, start the spec of a run or of a "
    "file in the home's specs, and change only keys that name nothing"
)


def main() -> None:
    """Makes one run."""
    with _own_output() as output:
        limit_memory()
        home = Home(Path(sys.argv[1]))
        given = json.load(sys.stdin)
        asked = Asked(**given | {"overrides": tuple(given["overrides"])})
        json.dump(answer_to(home, asked), output)


def _own_output() -> IO[str]:
    """Returns standard output for the answer alone; everything else that is printed goes to standard error."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


def answer_to(home: Home, asked: Asked) -> dict[str, Any]:
    """Returns the new run and warnings, or the error and its class."""
    try:
        spec, copies = wanted_spec(home, asked)
    except (YattError, LedgerError) as error:
        return _refusal(error, str(error))
    try:
        warnings = check_before_start(home.folder, spec, copies=copies).warnings
        run = create_run(home, spec, copies, asked.by)
    except LedgerError as error:
        return _refusal(error, str(error))
    except YattError as error:
        return _refusal(error, str(error) if is_within(home, spec) else withheld(str(error)))
    finally:
        reward_process().close()
    return {"run": run, "warnings": warnings}


def wanted_spec(home: Home, asked: Asked) -> tuple[RunSpec, Path | None]:
    """Returns the spec that is asked for, and the folder of the run whose copies of code it has; None without a run.

    Raises `ConfigurationError`, for a spec that names what it may not before anything of that is looked at.
    """
    if asked.run is not None:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            base, folder = current_spec(ledger, asked.run), home.run_folder(asked.run)
            fetch_code(base, folder, store_of(ledger, asked.run, folder))
        return changed(base, asked, f"the spec of run {asked.run}"), folder
    if asked.file is not None:
        return changed(load_spec(home.specs / asked.file), asked, asked.file), None
    extended = list[Path]()
    with tempfile.TemporaryDirectory(prefix="yatt-spec-") as made:
        path = Path(made) / "spec.yaml"
        path.write_text(asked.text or "", encoding="utf-8")
        try:
            if asked.may_name:
                return load_spec(path, asked.overrides, with_files=True, permit_base=extended.append), None
            within = home.specs.resolve()
            nothing_named = permit_known(frozenset(), REMEDY)
            return load_spec(path, asked.overrides, False, permit_within(within), nothing_named), None
        except ConfigurationError as error:
            said = str(error).replace(str(path), ORIGIN).replace(made, ORIGIN)
            folder = home.folder.resolve()
            quotes = not all(each.resolve().is_relative_to(folder) for each in extended)
            raise ConfigurationError(withheld(said) if quotes else said) from None


def changed(base: RunSpec, asked: Asked, origin: str) -> RunSpec:
    """Returns an existing spec with changes."""
    if not asked.overrides:
        return base
    if asked.may_name:
        return override_spec(base, asked.overrides, origin)
    return override_spec(base, asked.overrides, origin, permit_known(named_in(base), REMEDY))


def permit_within(folder: Path) -> Callable[[Path], None]:
    """Returns what refuses the files that a spec extends, unless they are in a folder."""

    def permit(path: Path) -> None:
        if not path.resolve().is_relative_to(folder):
            raise ConfigurationError(f"extends: names a file that is not in the home's specs; {REMEDY}")

    return permit


def is_within(home: Home, spec: RunSpec) -> bool:
    """Returns True if all files that a spec names are in the home."""
    folder = home.folder.resolve()
    return all(_is_within(folder, each) for each in named_in(spec) if each.kind in ("path", "code"))


def _is_within(folder: Path, named: Named) -> bool:
    value = json.loads(named.value)
    if not isinstance(value, str):
        return True  # options, which say nothing without the function that takes them
    if named.kind == "code" and not named.key.endswith("file"):
        return ":" not in value  # a function of YATT or of an installed package, by its entry point
    return Path(value.rpartition(":")[0] or value).resolve().is_relative_to(folder)


def withheld(text: str) -> str:
    """Writes an error to the log; returns the key with which each of its lines begins, and where the rest is."""
    sys.stderr.write(f"{ORIGIN}: {redact(text)}\n")
    keys = [KEY.match(line) for line in text.splitlines()]
    return "\n".join(f"{key.group() if key else ORIGIN}: {WITHHELD}" for key in keys)


def _refusal(error: YattError | LedgerError, shown: str) -> dict[str, Any]:
    kind = error.failure_class if isinstance(error, YattError) else FailureClass.INFRASTRUCTURE
    return {"error": redact(shown), "failure_class": kind}


if __name__ == "__main__":
    main()
