"""One run, joined: recorder, price, budget and guard behind ``outlay.run()``."""

from outlay.runs.live import Run
from outlay.runs.start import run

__all__ = ["Run", "run"]
