"""One run, joined: recorder, price, budget and guard behind ``outlay.run()``."""

from outlay.runs.live import Run, run

__all__ = ["Run", "run"]
