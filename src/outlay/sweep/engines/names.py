"""Every engine by its name, and where it lives; what other packages bring is found beside. Pure."""

from __future__ import annotations

from typing import Final

from outlay import plugins

ENGINES: Final = {
    "process": "outlay.sweep.engines.process:ProcessEngine",
    "slurm": "outlay.sweep.engines.slurm.engine:SlurmEngine",
    "torchrun": "outlay.sweep.engines.process:TorchrunEngine",
}


def engine_names() -> tuple[str, ...]:
    """Return the names that a grid may use: ours, and those that installed packages announce."""
    return (*ENGINES, *plugins.names(plugins.ENGINES))
