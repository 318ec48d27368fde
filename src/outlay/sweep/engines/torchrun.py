"""Runs that torchrun starts, which has to be installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from outlay.errors import MissingExtra
from outlay.sweep.engines.process import ProcessEngine


class TorchrunEngine(ProcessEngine):
    """Starts torchrun commands; what their flags are is the subject of ``outlay.sweep.launch``.

    Raises:
        MissingExtra: torch is not installed.
    """

    def __init__(self, root: Path) -> None:
        if importlib.util.find_spec("torch") is None:
            raise MissingExtra("engine: torchrun", "torch")
        super().__init__(root)
