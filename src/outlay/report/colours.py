"""One colour for each phase, the same in every report, on light and on dark. Pure.

After the palettes of Okabe and Ito (2008) and of Paul Tol, which colour-blind readers can tell
apart; the words beside a chart say the same again.
"""

from __future__ import annotations

from typing import Final

from outlay.goodput import phases as ph

_PHASES: Final = {
    ph.STEP: "#009e73",
    ph.ACCELERATOR_INIT: "#88ccee",
    ph.TRAINING_PREP: "#56b4e9",
    ph.PROGRAM_STARTUP: "#0072b2",
    ph.DATA_LOADING: "#e69f00",
    ph.CHECKPOINT_SAVE: "#cc79a7",
    ph.CHECKPOINT_RESTORE: "#aa4499",
    ph.EVALUATION: "#e5c700",
    ph.ELASTIC_SLICE_DOWN: "#999933",
    ph.ELASTIC_SCALE_UP: "#ddcc77",
    ph.ELASTIC_REINITIALIZATION: "#b8860b",
    ph.STALL: "#d55e00",
    ph.WASTED_PROGRESS: "#cc6677",
    ph.RECOVERY: "#882255",
    ph.OTHER: "#999999",
}
_CUSTOM: Final = "#44aa99"


def of_phase(phase: str) -> str:
    """Return the colour of a phase; those that a user named share one."""
    return _PHASES.get(phase, _CUSTOM)
