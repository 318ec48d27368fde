"""Phases of a run's wall time, and their names in ml-goodput-measurement; measures nothing."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

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


# Names of badput, as in ml-goodput-measurement 0.2.3.


class BadputType(enum.Enum):
    """The type of badput."""

    TPU_INITIALIZATION = 1
    TRAINING_PREP = 2
    PROGRAM_STARTUP = 3
    DATA_LOADING_SYNC = 4
    DATA_LOADING_ASYNC = 5
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME = 6
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME = 7
    WASTED_PROGRESS_FROM_DISRUPTION = 8
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION = 9
    CUSTOM_BADPUT_EVENTS = 10
    OTHER = 11
    ELASTIC_SLICE_DOWN = 12
    ELASTIC_SCALE_UP = 13
    ELASTIC_REINITIALIZATION = 14


class GoodputType(enum.Enum):
    """The type of goodput."""

    TOTAL = 1


BadputParts = dict[BadputType, float | dict[str, float]]
"""A number per badput type; for CUSTOM_BADPUT_EVENTS a number per name."""

BADPUT_OF_PHASE = {
    ACCELERATOR_INIT: BadputType.TPU_INITIALIZATION,
    TRAINING_PREP: BadputType.TRAINING_PREP,
    PROGRAM_STARTUP: BadputType.PROGRAM_STARTUP,
    DATA_LOADING: BadputType.DATA_LOADING_SYNC,
    CHECKPOINT_SAVE: BadputType.UNPRODUCTIVE_CHECKPOINT_SAVE_TIME,
    CHECKPOINT_RESTORE: BadputType.UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME,
    WASTED_PROGRESS: BadputType.WASTED_PROGRESS_FROM_DISRUPTION,
    RECOVERY: BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION,
    STALL: BadputType.OTHER,
    OTHER: BadputType.OTHER,
    ELASTIC_SLICE_DOWN: BadputType.ELASTIC_SLICE_DOWN,
    ELASTIC_SCALE_UP: BadputType.ELASTIC_SCALE_UP,
    ELASTIC_REINITIALIZATION: BadputType.ELASTIC_REINITIALIZATION,
}
"""The badput type of each phase; a phase that is not listed is a custom event."""

_ALWAYS_SHOWN = [kind for kind in BadputType if not kind.name.startswith("ELASTIC")]


def seconds(ns: int) -> float:
    """Return nanoseconds in seconds, rounded once."""
    return ns / 1_000_000_000


def badput_parts(
    phases: Mapping[str, int],
    overlapped_load_ns: int,
    share: Callable[[int], float],
    *,
    pathways: bool = False,
) -> BadputParts:
    """Return the unproductive phases by badput type; ``share`` converts nanoseconds.

    Overlapped data loading is reported as DATA_LOADING_ASYNC, which is not badput. With
    ``pathways`` one controller outlives its workers: a lost worker shows as a stalled step, so
    that ``stall`` counts as recovery.
    """
    sums = dict.fromkeys(_ALWAYS_SHOWN, 0)
    custom: dict[str, int] = {}
    for phase, ns in phases.items():
        if phase == STEP:
            continue
        counted_as = RECOVERY if pathways and phase == STALL else phase
        kind = BADPUT_OF_PHASE.get(counted_as, BadputType.CUSTOM_BADPUT_EVENTS)
        sums[kind] = sums.get(kind, 0) + ns
        if kind is BadputType.CUSTOM_BADPUT_EVENTS:
            name = phase.removeprefix("custom:").upper()
            custom[name] = custom.get(name, 0) + ns
    sums[BadputType.DATA_LOADING_ASYNC] = overlapped_load_ns
    parts: BadputParts = {kind: share(ns) for kind, ns in sums.items()}
    parts[BadputType.CUSTOM_BADPUT_EVENTS] = {name: share(ns) for name, ns in custom.items()}
    return parts
