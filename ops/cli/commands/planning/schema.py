"""`yatt schema`: prints the JSON Schema of specs, for editors and documentation."""

from __future__ import annotations

import typer

from ops.cli.options import examples


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command(epilog=examples("yatt schema > yatt.schema.json"))(schema)


def schema() -> None:
    """Print the JSON Schema of spec files, which editors use for validation and completion."""
    import json

    from ops.presentation.output import write
    from yatt_core.spec import json_schema

    write(json.dumps(json_schema(), indent=1))
