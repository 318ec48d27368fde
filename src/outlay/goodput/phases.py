"""Phases of a run's wall time; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping

from outlay.account.columns import ACCELERATOR_INIT as ACCELERATOR_INIT
from outlay.account.columns import CHECKPOINT_RESTORE as CHECKPOINT_RESTORE
from outlay.account.columns import CHECKPOINT_SAVE as CHECKPOINT_SAVE
from outlay.account.columns import DATA_LOADING as DATA_LOADING
from outlay.account.columns import ELASTIC_REINITIALIZATION as ELASTIC_REINITIALIZATION
from outlay.account.columns import ELASTIC_SCALE_UP as ELASTIC_SCALE_UP
from outlay.account.columns import ELASTIC_SLICE_DOWN as ELASTIC_SLICE_DOWN
from outlay.account.columns import EVALUATION as EVALUATION
from outlay.account.columns import NAMES
from outlay.account.columns import TRAINING_PREP as TRAINING_PREP

SPAN_PHASES = NAMES
STEP = "step"
PROGRAM_STARTUP = "program_startup"
WASTED_PROGRESS = "wasted_progress"
RECOVERY = "recovery"
PAUSED = "paused"
STALL = "stall"
OTHER = "other"

# In display order: productive time first, then the rest by cause.
ORDER = (
    STEP,
    *SPAN_PHASES[:2],
    PROGRAM_STARTUP,
    *SPAN_PHASES[2:],
    STALL,
    WASTED_PROGRESS,
    RECOVERY,
    PAUSED,
    OTHER,
)

Phases = Mapping[str, int]
"""Nanoseconds (or exact money) by phase; an absent phase has none."""


def phase_of_span(name: str) -> str:
    """Return the phase of a span of this name."""
    return name if name in SPAN_PHASES or name.startswith("custom:") else f"custom:{name}"


def in_order(phases: Phases) -> list[str]:
    """Return the names of phases in display order, custom ones before ``stall``."""
    custom = sorted(name for name in phases if name not in ORDER)
    place = ORDER.index(STALL)
    return [name for name in (*ORDER[:place], *custom, *ORDER[place:]) if name in phases]


def added(left: Phases, right: Phases) -> dict[str, int]:
    """Return the sum of two phase maps, phase by phase."""
    total = dict(left)
    for name, ns in right.items():
        total[name] = total.get(name, 0) + ns
    return total


def difference(later: Phases, earlier: Phases) -> dict[str, int]:
    """Return the difference of two cumulative phase maps, without the phases that are zero."""
    changes = {name: later.get(name, 0) - earlier.get(name, 0) for name in {**later, **earlier}}
    return {name: ns for name, ns in changes.items() if ns}
