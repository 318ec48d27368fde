"""What many commands take, each with one name, one sentence and one place in the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name.")]
Png = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also draw a picture into it; needs the extra `report`."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
