"""Makes the run that somebody asks for over HTTP, checked as `yatt train` checks it: `python -m ops.preflight.asked HOME`.

Consumes `apart.RunRequest` as JSON on standard input; produces the run, or the error, as JSON on standard output. Whatever
the spec's code prints goes to standard error. Errors quote contents of files only if all files that the spec names are in the
home; the server's log has them in full.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from db.core.errors import LedgerError
from db.ledger import Ledger
from flows.branching import branches
from flows.branching.safe_point import RevisionOptions as MayChange
from flows.files.storage import store_of
from flows.run.creation import create_run, current_spec
from flows.run.home import Home
from flows.run.repositories import with_repositories
from ops.preflight.apart import CHECKED, ORIGIN, RunRequest, limit_memory
from ops.preflight.run import check_before_start
from yatt_core.code_files import fetch_code
from yatt_core.errors import ConfigurationError, FailureClass, YattError
from yatt_core.logs import redact
from yatt_core.naming import Named, named_in, permit_known
from yatt_core.orphans import adopt_orphans, end_children, end_with_parent
from yatt_core.rewards.process import reward_process
from yatt_core.spec import RunSpec, load_spec, override_spec

KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
WITHHELD = "the details may quote files outside of the home, and are in the log of the server"
Said = Callable[[str], None]


def main() -> None:
    """Makes one run."""
    end_with_parent()
    adopt_orphans()
    with _own_output() as output:
        limit_memory()
        home = Home(Path(sys.argv[1]))
        given = json.load(sys.stdin)
        asked = RunRequest(**given | {"overrides": tuple(given["overrides"])})

        def say(line: str) -> None:
            output.write(f"{line}\n")
            output.flush()

        answer = answer_to(home, asked, say)
        end_children()
        say(json.dumps(answer))


def _own_output() -> IO[str]:
    """Returns standard output for the answer alone; everything else that is printed goes to standard error."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


def answer_to(home: Home, asked: RunRequest, say: Said) -> dict[str, Any]:
    """Returns the new run and warnings, or the error and its class. say: is told once the spec is sound."""
    extended = list[Path]()
    spec: RunSpec | None = None
    try:
        spec, copies = wanted_spec(home, asked, extended)
        if asked.act != "create":
            return changed_run(home, asked)
        # A request is no time to fetch what may take hours.
        spec = with_repositories(home.folder, spec, fetches=False)
        try:
            warnings = check_before_start(home.folder, spec, copies=copies).warnings
        finally:
            reward_process().close()
        say(CHECKED)
        run = create_run(home, spec, copies, asked.by)
    except LedgerError as error:
        return {"error": shown_of(asked, str(error)), "failure_class": FailureClass.INFRASTRUCTURE}
    except YattError as error:
        said = str(error) if is_within(home, spec, extended) else withheld(str(error))
        return {"error": shown_of(asked, said), "failure_class": error.failure_class}
    except (OSError, RuntimeError, MemoryError) as error:
        traceback.print_exception(error)
        said = f"{ORIGIN}: its check has failed: {type(error).__name__}; the log of the server says more"
        return {"error": said, "failure_class": FailureClass.CONFIGURATION}
    if not is_within(home, spec, extended):
        warnings = [withheld(line) for line in warnings]
    return {"run": run, "warnings": [redact(line) for line in warnings]}


def changed_run(home: Home, asked: RunRequest) -> dict[str, Any]:
    """Forks a run or revises its spec, and returns what was done.

    Either may be killed: a fork that is not whole is finished by its first resume; a revision is there as a whole or not, but may
    have discarded already what it was allowed to discard, as the same one would if it was asked for again.
    """
    assert asked.run is not None, "the caller names a run"
    try:
        if asked.act == "fork":
            made = branches.fork(
                home=home,
                run=asked.run,
                at=asked.at,
                overrides=asked.overrides,
                branch=asked.branch,
                by=asked.by,
                refusal=asked.refusal,
            )
            done = f"{made.run} begins after iteration {made.parent_iteration} of {made.parent_run}"
            return {"run": made.run, "warnings": [], "done": done}
        may = MayChange(discard=asked.discard)
        number = branches.revise(
            home=home, run=asked.run, overrides=asked.overrides, by=asked.by, refusal=asked.refusal, asked=may
        )
        return {"run": asked.run, "warnings": [], "done": f"revision {number} of the spec is in effect"}
    finally:
        reward_process().close()


def shown_of(asked: RunRequest, text: str) -> str:
    """Returns an error as it may be shown and recorded: the values of changes may be secrets."""
    for override in asked.overrides:
        text = text.replace(override, override.partition("=")[0])
    return redact(text)


def wanted_spec(home: Home, asked: RunRequest, extended: list[Path]) -> tuple[RunSpec, Path | None]:
    """Returns the spec that is asked for, and the folder of the run whose copies of code it has; None without a run.

    extended: is given the files of which the spec is made.

    Raises `ConfigurationError`, for a spec that names what it may not before anything of that is looked at.
    """
    if asked.run is not None:
        with Ledger.open(home.ledger, migrate=False) as ledger:
            folder = home.run_folder(asked.run)
            if asked.act == "fork":
                base = branches.spec_at(ledger, asked.run, asked.branch, asked.at)
                origin = f"the spec of run {asked.run} at iteration {asked.at}"
            else:
                base = current_spec(ledger, asked.run)
                origin = f"the spec of run {asked.run}"
            fetch_code(base, folder, store_of(ledger, asked.run, folder))
        return changed(base, asked, origin), folder
    if asked.file is not None:
        path = home.specs / asked.file
        extended.append(path)
        return changed(load_spec(path, permit_base=extended.append), asked, asked.file), None
    with tempfile.TemporaryDirectory(prefix="yatt-spec-") as made:
        path = Path(made) / "spec.yaml"
        path.write_text(asked.text or "", encoding="utf-8")
        try:
            if asked.refusal is None:
                found = load_spec(path, asked.overrides, with_files=True, permit_base=extended.append)
                return _without_folder(found, path.parent), None
            within = permit_within(home.specs.resolve(), asked.refusal)
            return load_spec(
                path=path,
                overrides=asked.overrides,
                with_files=False,
                permit_base=within,
                permit=permit_known(frozenset(), asked.refusal),
            ), None
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace(str(path), ORIGIN).replace(made, ORIGIN)) from None


def _without_folder(spec: RunSpec, made: Path) -> RunSpec:
    """Returns the spec of a text, whose settings have paths relative to no folder: not to that in which it was read."""
    if spec.workload.folder != str(made.resolve()):
        return spec
    return spec.model_copy(update={"workload": spec.workload.model_copy(update={"folder": None})})


def changed(base: RunSpec, asked: RunRequest, origin: str) -> RunSpec:
    """Returns an existing spec with changes."""
    if not asked.overrides:
        return base
    if asked.refusal is None:
        return override_spec(base, asked.overrides, origin)
    return override_spec(base, asked.overrides, origin, permit_known(named_in(base), asked.refusal))


def permit_within(folder: Path, refusal: str) -> Callable[[Path], None]:
    """Returns what refuses the files that a spec extends, unless they are in a folder."""

    def permit(path: Path) -> None:
        if not path.resolve().is_relative_to(folder):
            raise ConfigurationError(f"extends: names a file that is not in the home's specs; {refusal}")

    return permit


def is_within(home: Home, spec: RunSpec | None, extended: Sequence[Path]) -> bool:
    """Returns True if all files of which a spec is made, and all that it names, are in the home."""
    folder = home.folder.resolve()
    named = () if spec is None else named_in(spec)
    return all(path.resolve().is_relative_to(folder) for path in extended) and all(
        _is_within(folder, each) for each in named if each.kind in ("path", "code")
    )


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
    known = [key.group() if key and key.group().partition(".")[0] in RunSpec.model_fields else ORIGIN for key in keys]
    return "\n".join(f"{key}: {WITHHELD}" for key in dict.fromkeys(known))


if __name__ == "__main__":
    main()
