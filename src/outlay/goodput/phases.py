"""The names of phases: every instant of a run's wall time has exactly one."""

from __future__ import annotations

from collections.abc import Mapping

STEP = "step"
ACCELERATOR_INIT = "accelerator_init"
TRAINING_PREP = "training_prep"
PROGRAM_STARTUP = "program_startup"
DATA_LOADING = "data_loading"
CHECKPOINT_SAVE = "checkpoint_save"
CHECKPOINT_RESTORE = "checkpoint_restore"
EVALUATION = "evaluation"
ELASTIC_SLICE_DOWN = "elastic_slice_down"
ELASTIC_SCALE_UP = "elastic_scale_up"
ELASTIC_REINITIALIZATION = "elastic_reinitialization"
WASTED_PROGRESS = "wasted_progress"
RECOVERY = "recovery"
STALL = "stall"
OTHER = "other"

# What a span may be called to be counted under that name; any other is ``custom:<name>``.
SPAN_PHASES = (
    ACCELERATOR_INIT,
    TRAINING_PREP,
    DATA_LOADING,
    CHECKPOINT_SAVE,
    CHECKPOINT_RESTORE,
    EVALUATION,
    ELASTIC_SLICE_DOWN,
    ELASTIC_SCALE_UP,
    ELASTIC_REINITIALIZATION,
)

# The order in which people read them: what was productive, then what was not, by cause.
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
"""Nanoseconds (or exact money) by phase; a phase that is absent has none."""


def phase_of_span(name: str) -> str:
    """Return the phase that a span of this name is counted under."""
    return name if name in SPAN_PHASES or name.startswith("custom:") else f"custom:{name}"


def in_order(phases: Phases) -> list[str]:
    """Return the phases that are present, custom ones before ``stall``."""
    custom = sorted(name for name in phases if name not in ORDER)
    place = ORDER.index(STALL)
    return [name for name in (*ORDER[:place], *custom, *ORDER[place:]) if name in phases]


def added(left: Phases, right: Phases) -> dict[str, int]:
    """Return the sum of two phase maps, phase by phase."""
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def difference(later: Phases, earlier: Phases) -> dict[str, int]:
    """Return what came to pass between two cumulative phase maps; empty phases are left out."""
    changes = {name: later.get(name, 0) - earlier.get(name, 0) for name in {**later, **earlier}}
    return {name: ns for name, ns in changes.items() if ns}
