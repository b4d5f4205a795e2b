"""Arguments that the commands about pipelines share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline in YAML.")]
PipelineArgument = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="A pipeline's name and number, such as letters-1; or `latest`.")
]
