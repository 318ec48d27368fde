"""The records of a run log: one frozen struct per kind, and their closed union.

A record holds what happened and when, never an interpretation. Times are UTC nanoseconds on the
attempt's own axis: its wall clock at the start plus the monotonic time elapsed since.
``outlay.ledger.codec`` encodes records as lines.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

import msgspec

from outlay.ledger.price import Price

EndStatus = Literal["completed", "failed", "interrupted", "terminated", "preempted", "paused"]
"""``paused``: it ended on purpose to continue later, and holds nothing until then."""

LARGEST = 2**62 - 1
Bounded = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
"""Readers keep these in 64-bit columns and add them in pairs; a larger value is a finding."""

Amount = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
_Rank = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
GpuCount = Amount | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}/[1-9][0-9]{0,8}$")]
"""A number of GPUs: an integer, or a fraction in lowest terms such as ``"1/7"``."""

UNWRITTEN = -1
"""The sequence number of a record that is not written yet."""


def exact_gpus(count: GpuCount) -> Fraction:
    """Return a recorded number of GPUs as an exact fraction."""
    return Fraction(count)


def gpu_count_of(gpus: Fraction | int) -> GpuCount:
    """Return a number of GPUs in its recorded form."""
    exact = Fraction(gpus)
    return exact.numerator if exact.denominator == 1 else str(exact)


class _Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    seq: Bounded = UNWRITTEN
    t_ns: Bounded


class AttemptStarted(_Base, frozen=True, kw_only=True, tag="attempt_started"):
    """A process began to record; always the first record of its segment.

    ``nodes`` is 0 in logs written before runs were charged per node; those logs have none of the
    fields after it. ``since_boot_ns`` is the time since boot at ``t_ns``; 0 if unknown.
    ``queued_ns`` is when the job of the process was queued, by the submitter's clock; 0 if unknown.
    """

    run_id: str = ""
    model: str = ""
    name: str = ""
    rank: _Rank = 0
    world_size: Amount = 1
    pid: Amount = 0
    host: str = ""
    boot_id: str = ""
    user: str = ""
    launch: str = ""
    slurm_job: str = ""
    slurm_account: str = ""
    slurm_partition: str = ""
    instance_id: str = ""
    git_commit: str = ""
    versions: dict[str, str] = {}
    tags: dict[str, str] = {}
    gpu: str = ""
    gpus: GpuCount = 1
    price: Price | None = None
    stopped_price: Price | None = None
    nodes: Amount = 0
    node: Amount = 0
    node_gpus: GpuCount = 0
    gpus_source: str = ""
    process_start_ns: Bounded = 0
    agent_start_ns: Bounded = 0
    init_start: str = ""
    slurm_restart: str = ""
    stopped_machine_price: Price | None = None
    since_boot_ns: Bounded = 0
    queued_ns: Bounded = 0
    config: dict[str, Any] = {}
    command: tuple[str, ...] = ()


class AttemptEnded(_Base, frozen=True, kw_only=True, tag="attempt_ended"):
    """The process ended normally; without this record it was killed or is still alive."""

    status: EndStatus
    reason: str = ""
    exit_code: Bounded | None = None


class SpanBegun(_Base, frozen=True, kw_only=True, tag="span_begun"):
    """A named span of work began.

    ``overlapped`` marks work concurrent with training (another thread, an asynchronous save): it is
    reported but is not part of the partition of wall time.
    """

    name: str
    overlapped: bool = False


class SpanEnded(_Base, frozen=True, kw_only=True, tag="span_ended"):
    """The span that began at sequence number ``begun`` of the same segment ended."""

    begun: Bounded


class Step(_Base, frozen=True, kw_only=True, tag="step", gc=False):
    """One training step (or ``count`` consecutive ones), written at its end, ``t_ns``.

    It ran during ``[t_ns - dur_ns, t_ns)``, after waiting ``wait_ns`` for its data.
    """

    step: Bounded
    dur_ns: Bounded
    wait_ns: Bounded = 0
    tokens: Bounded = 0
    samples: int = 0
    comm_bytes: int = 0
    energy_mj: int = 0
    flops: int = 0
    count: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)] = 1


class Metric(_Base, frozen=True, kw_only=True, tag="metric", gc=False):
    """A number that the training reported, such as accuracy.

    JSON has no NaN or infinity: they are written as ``"nan"``, ``"inf"`` and ``"-inf"``.
    """

    name: str
    value: float | Annotated[str, msgspec.Meta(pattern="^(nan|-?inf)$")]
    step: Bounded | None = None

    @property
    def number(self) -> float:
        """The value as a float; may be NaN or infinite."""
        return float(self.value)


class CheckpointCommitted(_Base, frozen=True, kw_only=True, tag="checkpoint_committed"):
    """Everything up to and including ``step`` is safe on storage."""

    step: Bounded


class PriceChanged(_Base, frozen=True, kw_only=True, tag="price_changed"):
    """From ``t_ns`` on the run pays ``price`` for each of ``gpus`` GPUs."""

    price: Price
    gpus: GpuCount


class PriceCorrected(_Base, frozen=True, kw_only=True, tag="price_corrected"):
    """Somebody stated at ``t_ns`` that the run's price ``was`` wrong: ``price`` counts instead.

    Written after the end of the run, and no sign of life of it. ``was`` is None if it had no price.
    """

    price: Price
    was: Price | None = None
    by: str = ""
    reason: str = ""


class SlicesChanged(_Base, frozen=True, kw_only=True, tag="slices_changed"):
    """From ``t_ns`` on, an elastic run trains on ``active`` of its ``total`` slices.

    ``available`` slices could train.
    """

    active: Amount
    total: Amount
    available: Amount


class BudgetEvent(_Base, frozen=True, kw_only=True, tag="budget_event"):
    """A budget was set or changed, crossed a threshold, or stopped the run."""

    event: str
    data: dict[str, Any] = {}


class BudgetStatement(_Base, frozen=True, kw_only=True, tag="budget_statement"):
    """The budget state after replaying this segment's records with numbers below ``covers``.

    Redundant: it lets a start skip those records. ``form`` is the version of ``state``; a reader
    that does not know it replays the records instead.
    """

    form: int
    covers: Bounded
    state: dict[str, Any]


class Heartbeat(_Base, frozen=True, kw_only=True, tag="heartbeat"):
    """A sign of life, with accelerator use since the last one if known."""

    gpu_busy_ns: Bounded = 0
    energy_mj: Bounded = 0


class Note(_Base, frozen=True, kw_only=True, tag="note"):
    """Free text and data that have no kind of their own."""

    text: str = ""
    data: dict[str, Any] = {}


class Payload(_Base, frozen=True, kw_only=True, tag="payload"):
    """An entry as users of ml-goodput-measurement write it, unchanged."""

    data: dict[str, Any]


class Gap(_Base, frozen=True, kw_only=True, tag="gap"):
    """The recorder could not write: ``lost`` records are missing before this one."""

    lost: Amount
    since_ns: Bounded
    reason: str = ""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a kind that this version does not know, unchanged."""

    seq: Bounded
    t_ns: Bounded
    kind: str
    fields: dict[str, Any]


KnownRecord = (
    AttemptStarted
    | AttemptEnded
    | SpanBegun
    | SpanEnded
    | Step
    | Metric
    | CheckpointCommitted
    | PriceChanged
    | PriceCorrected
    | SlicesChanged
    | BudgetEvent
    | BudgetStatement
    | Heartbeat
    | Note
    | Payload
    | Gap
)
Record = KnownRecord | Unknown


def kind_of(record: Record) -> str:
    """Return the record's kind as written in the log."""
    if isinstance(record, Unknown):
        return record.kind
    return str(record.__struct_config__.tag)
