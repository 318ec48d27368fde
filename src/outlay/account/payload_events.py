"""Payloads other than step starts, understood one by one.

The keys are those that ml-goodput-measurement 0.2.3 and Orbax's checkpoint logger write. A payload
is one event, or a ValueError that says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlay.account import spans as names
from outlay.account.payload_steps import Payload, is_count, ns_of_seconds


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job began, for the first time or again."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job said that it is done."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class Began:
    """A stretch of work began."""

    t_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A stretch of work ended."""

    t_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class Took:
    """A stretch of work, told when it was over; without a begin it lies where it was told."""

    begin_ns: int | None
    duration_ns: int
    span: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of everything up to and including ``step``."""

    t_ns: int
    step: int


@dataclass(frozen=True, slots=True)
class Slices:
    """How many slices of an elastic job train, exist, and could train."""

    t_ns: int
    active: int
    total: int
    available: int


Event = JobStarted | JobEnded | Began | Ended | Took | Saved | Slices

_SPANS = {
    "tpu_init": names.ACCELERATOR_INIT,
    "training_prep": names.TRAINING_PREP,
    "data_loading": names.DATA_LOADING,
    "elastic_reinit": names.ELASTIC_REINITIALIZATION,
}
_BEGINS = {f"{stem}_start_time": span for stem, span in _SPANS.items()}
_ENDS = {f"{stem}_end_time": span for stem, span in _SPANS.items()}


def understand(payload: Payload) -> Event:
    """Return what a payload says.

    Raises:
        ValueError: It says nothing that is known, or nothing that can be.
    """
    if not isinstance(payload, Mapping):
        raise ValueError("is no JSON object")
    for key in payload:
        if key in _BEGINS:
            return Began(_instant(payload, key), _BEGINS[key])
        if key in _ENDS:
            return Ended(_instant(payload, key), _ENDS[key])
    match payload:
        case {"job_start_time": _}:
            return JobStarted(_instant(payload, "job_start_time"))
        case {"job_end_time": _}:
            return JobEnded(_instant(payload, "job_end_time"))
        case {"custom_badput_event_type": kind}:
            return _edge(payload, "custom_badput_event", f"custom:{_text(kind)}")
        case {"elastic_wait_event_type": kind}:
            is_scale_up = "scale_up" in _text(kind).lower()
            span = names.ELASTIC_SCALE_UP if is_scale_up else names.ELASTIC_SLICE_DOWN
            return _edge(payload, "elastic_wait", span)
        case {"elastic_slice_counts_timestamp": _}:
            return _slices(payload)
        case {"checkpoint_start_time": _, "checkpoint_step": step}:
            return Saved(_instant(payload, "checkpoint_start_time"), _whole(step, "step"))
        case {"event_type": "save" | "restore" | "emergency_restore" as kind}:
            return _checkpoint(payload, kind)
        case _:
            raise ValueError("is of no known kind")


def instant_of(event: Event) -> int | None:
    """Return when something happened or began, where its payload says so."""
    return event.begin_ns if isinstance(event, Took) else event.t_ns


def _edge(payload: Payload, stem: str, span: str) -> Began | Ended:
    if f"{stem}_start_time" in payload:
        return Began(_instant(payload, f"{stem}_start_time"), span)
    return Ended(_instant(payload, f"{stem}_end_time"), span)


def _slices(payload: Payload) -> Slices:
    t_ns = _instant(payload, "elastic_slice_counts_timestamp")
    names = ("active_slices", "total_slices", "available_slices")
    active, total, available = (_whole(payload.get(name), name) for name in names)
    if total < 1 or active > total:
        raise ValueError("says that more slices train than there are")
    return Slices(t_ns, active, total, available)


def _checkpoint(payload: Payload, kind: str) -> Took:
    """Return how long a checkpoint held training up; the part of a save that blocks, in full."""
    parts = (
        ("checkpoint_manager_blocking", "checkpointer_blocking")
        if kind == "save"
        else ("checkpoint_manager", "checkpointer")
    )
    span = names.CHECKPOINT_SAVE if kind == "save" else names.CHECKPOINT_RESTORE
    for part in parts:
        if payload.get(f"{part}_duration_secs") is not None:
            begin = payload.get(f"{part}_start_time")
            begin_ns = None if begin is None else _instant(payload, f"{part}_start_time")
            return Took(begin_ns, _instant(payload, f"{part}_duration_secs"), span)
    raise ValueError(f"is a {kind} without a duration: it was not finished")


def _instant(payload: Payload, key: str) -> int:
    if key not in payload:
        raise ValueError(f"has no {key}")
    try:
        return ns_of_seconds(payload[key])
    except ValueError as error:
        raise ValueError(f"{key} {error}") from None


def _whole(value: Any, name: str) -> int:
    if not is_count(value):
        raise ValueError(f"{name} is not a count")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("its event type is not text")
    return value
