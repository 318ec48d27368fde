"""Runs that torchrun starts: its workers leave the group, so their end is looked after."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import ClassVar

from outlay.errors import MissingExtra
from outlay.sweep.engines.process import ProcessEngine


class TorchrunEngine(ProcessEngine):
    """Starts torchrun commands; what their flags are is the subject of ``outlay.sweep.launch``.

    Raises:
        MissingExtra: torch is not installed.
    """

    thorough: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        if importlib.util.find_spec("torch") is None:
            raise MissingExtra("engine: torchrun", "torch")
        super().__init__(root)
