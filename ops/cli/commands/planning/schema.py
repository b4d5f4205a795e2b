"""`yatt schema`: the JSON Schema of a spec, for editors and documentation."""

from __future__ import annotations

import typer

from ops.cli.options import examples


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=examples("yatt schema > yatt.schema.json"))(schema)


def schema() -> None:
    """Print the JSON Schema of a spec file; editors check and complete specs with it."""
    import json

    from ops.presentation.output import write
    from yatt_core.spec import json_schema

    write(json.dumps(json_schema(), indent=1))
