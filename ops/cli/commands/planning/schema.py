"""`yatt schema`: prints the JSON Schema of specs, for editors and documentation, and presets in full."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ops.presentation.output import write
from ops.terminal.options import examples
from yatt_core.errors import ConfigurationError

app = typer.Typer()


@app.command(epilog=examples("yatt schema > yatt.schema.json", "yatt schema --preset dapo"))
def schema(
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="Print a preset of the algorithm in full.")] = None,
) -> None:
    """Print the JSON Schema of spec files, which editors use for validation and completion."""
    from yatt_core.spec import json_schema
    from yatt_core.spec.presets import preset_tree
    from yatt_core.spec.reading.documents import yaml_text
    from yatt_core.spec.sections.algorithm import AlgorithmSpec

    if preset is not None:
        try:
            section = AlgorithmSpec.model_validate(preset_tree(preset))
        except ConfigurationError as error:
            raise ConfigurationError(f"--preset: {error}") from error
        write(yaml_text({"algorithm": section.model_dump(mode="json")}).rstrip())
        return
    write(json.dumps(json_schema(), indent=1))
