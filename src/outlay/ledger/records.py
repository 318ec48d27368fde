"""The facts a run log can hold: one frozen struct per kind, and their closed union.

A record says what happened and when; it never says what that means. Times are UTC nanoseconds on
the attempt's own axis: its wall clock at the start plus what the monotonic clock measured since.
How a record becomes a line is the subject of ``outlay.ledger.codec``.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Literal

import msgspec

from outlay.ledger.price import Price

EndStatus = Literal["completed", "failed", "interrupted", "terminated", "preempted"]

LARGEST = 2**62 - 1
Bounded = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
"""What readers keep in columns of 64 bits, and add in pairs; a line with more is a finding."""

Amount = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
"""A count or an amount, which is never less than nothing."""
_Rank = Annotated[int, msgspec.Meta(ge=-1, le=LARGEST)]
GpuCount = Amount | Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}/[1-9][0-9]{0,8}$")]
"""How many GPUs: a whole number as it is, a share of one in lowest terms, such as ``"1/7"``."""

UNWRITTEN = -1
"""The sequence number of a record that is not in a segment yet."""


def exact_gpus(count: GpuCount) -> Fraction:
    """Return a recorded number of GPUs as the exact number that it is."""
    return Fraction(count)


def gpu_count_of(gpus: Fraction | int) -> GpuCount:
    """Return a number of GPUs as it is recorded."""
    exact = Fraction(gpus)
    return exact.numerator if exact.denominator == 1 else str(exact)


class _Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What every record carries: when it happened, and its place in the segment."""

    seq: Bounded = UNWRITTEN
    t_ns: Bounded


class AttemptStarted(_Base, frozen=True, kw_only=True, tag="attempt_started"):
    """A process began to record; always the first record of its segment.

    ``nodes`` is 0 in logs that were written before runs were charged node by node; nothing of what
    follows it is in them.
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
    config: dict[str, Any] = {}
    command: tuple[str, ...] = ()


class AttemptEnded(_Base, frozen=True, kw_only=True, tag="attempt_ended"):
    """The process ended in order; without this record it was killed or is still alive."""

    status: EndStatus
    reason: str = ""
    exit_code: Bounded | None = None


class SpanBegun(_Base, frozen=True, kw_only=True, tag="span_begun"):
    """A named stretch of work began.

    ``overlapped`` marks work beside training (another thread, an asynchronous save): it is reported
    but takes no part in the partition of wall time.
    """

    name: str
    overlapped: bool = False


class SpanEnded(_Base, frozen=True, kw_only=True, tag="span_ended"):
    """The span that began at sequence number ``begun`` of the same segment is over."""

    begun: Bounded


class Step(_Base, frozen=True, kw_only=True, tag="step", gc=False):
    """One training step (or ``count`` consecutive ones), written when it ended at ``t_ns``.

    It ran during ``[t_ns - dur_ns, t_ns)``; training waited for its data during the ``wait_ns``
    before that.
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


class Metric(_Base, frozen=True, kw_only=True, tag="metric"):
    """A number the training reported about itself, such as accuracy.

    JSON has no NaN and no infinity: they stand as ``"nan"``, ``"inf"`` and ``"-inf"``.
    """

    name: str
    value: float | Annotated[str, msgspec.Meta(pattern="^(nan|-?inf)$")]
    step: Bounded | None = None

    @property
    def number(self) -> float:
        """The value as a float, whatever it is."""
        return float(self.value)


class CheckpointCommitted(_Base, frozen=True, kw_only=True, tag="checkpoint_committed"):
    """Everything up to and including ``step`` is safe on storage."""

    step: Bounded


class PriceChanged(_Base, frozen=True, kw_only=True, tag="price_changed"):
    """From ``t_ns`` on the run pays ``price`` for each of ``gpus`` GPUs."""

    price: Price
    gpus: GpuCount


class SlicesChanged(_Base, frozen=True, kw_only=True, tag="slices_changed"):
    """From ``t_ns`` on, ``active`` of an elastic run's ``total`` slices train.

    ``available`` of them could.
    """

    active: Amount
    total: Amount
    available: Amount


class BudgetEvent(_Base, frozen=True, kw_only=True, tag="budget_event"):
    """A budget was set, changed, passed a threshold or stopped the run."""

    event: str
    data: dict[str, Any] = {}


class BudgetStatement(_Base, frozen=True, kw_only=True, tag="budget_statement"):
    """What a replay of this segment's records numbered below ``covers`` gives a budget.

    It repeats what those records say, so that a start need not read them. ``form`` is the version
    of ``state``: a reader that does not know it reads the records.
    """

    form: int
    covers: Bounded
    state: dict[str, Any]


class Heartbeat(_Base, frozen=True, kw_only=True, tag="heartbeat"):
    """A sign of life, with what the accelerators did since the last one where that is known."""

    gpu_busy_ns: Bounded = 0
    energy_mj: Bounded = 0


class Note(_Base, frozen=True, kw_only=True, tag="note"):
    """Anything worth keeping that has no kind of its own."""

    text: str = ""
    data: dict[str, Any] = {}


class Payload(_Base, frozen=True, kw_only=True, tag="payload"):
    """An entry as users of ml-goodput-measurement write it, kept as it came."""

    data: dict[str, Any]


class Gap(_Base, frozen=True, kw_only=True, tag="gap"):
    """The recorder could not write: ``lost`` records are missing before this one."""

    lost: Amount
    since_ns: Bounded
    reason: str = ""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a kind that this version does not know; kept as it was found."""

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
    """Return the record's kind as it stands in the log."""
    if isinstance(record, Unknown):
        return record.kind
    return str(record.__struct_config__.tag)
