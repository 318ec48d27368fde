"""The run log: what happened in a run, as appended facts. It computes nothing from them.

What reads logs loads when it is first used: a process that only writes one need not wait for it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from outlay.ledger.codec import encode_line
from outlay.ledger.price import Price
from outlay.ledger.records import (
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    BudgetStatement,
    CheckpointCommitted,
    EndStatus,
    Gap,
    GpuCount,
    Heartbeat,
    KnownRecord,
    Metric,
    Note,
    Payload,
    PriceChanged,
    Record,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
    Unknown,
    exact_gpus,
    gpu_count_of,
    kind_of,
)
from outlay.ledger.segments import (
    SUPERVISOR,
    RunIdentity,
    SegmentId,
    claim_identity,
    ledger_dir,
    read_identity,
    segment_paths,
)
from outlay.ledger.writer import SegmentWriter, end_segment

if TYPE_CHECKING:
    from outlay.ledger.attempts import (
        ACCOUNTS,
        Attempt,
        NodeStay,
        SegmentLife,
        alive_until,
        derive_attempts,
        energy_of,
        read_lives,
        training_ranks,
    )
    from outlay.ledger.reader import Chunk, LedgerReader, RunLog, read_run
    from outlay.ledger.resume import Stated, find_statements, last_committed_step

_READING = {
    "attempts": (
        "ACCOUNTS", "Attempt", "NodeStay", "SegmentLife", "alive_until", "derive_attempts",
        "energy_of", "read_lives", "training_ranks",
    ),
    "reader": ("Chunk", "LedgerReader", "RunLog", "read_run"),
    "resume": ("Stated", "find_statements", "last_committed_step"),
}  # fmt: skip
_HOMES = {name: module for module, names in _READING.items() for name in names}

__all__ = [
    "ACCOUNTS", "SUPERVISOR", "Attempt", "AttemptEnded", "AttemptStarted", "BudgetEvent",
    "BudgetStatement", "CheckpointCommitted", "Chunk", "EndStatus", "Gap", "GpuCount", "Heartbeat",
    "KnownRecord", "LedgerReader", "Metric", "NodeStay", "Note", "Payload", "Price", "PriceChanged",
    "Record", "RunIdentity", "RunLog", "SegmentId", "SegmentLife", "SegmentWriter", "SlicesChanged",
    "SpanBegun", "SpanEnded", "Stated", "Step", "Unknown", "alive_until", "claim_identity",
    "derive_attempts", "encode_line", "end_segment", "energy_of", "exact_gpus", "find_statements",
    "gpu_count_of", "kind_of", "last_committed_step", "ledger_dir", "read_identity", "read_lives",
    "read_run", "segment_paths", "training_ranks",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outlay.ledger' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"outlay.ledger.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
