"""The run log: append-only records of what happened in a run. Computes nothing from them.

Names for reading logs are imported on first use, so that a process that only writes loads less.
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
    PriceCorrected,
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
from outlay.ledger.writer import SegmentWriter, append_to_ended, end_segment

if TYPE_CHECKING:
    from outlay.ledger.attempts import (
        ACCOUNTS,
        Attempt,
        NodeInterval,
        SegmentLife,
        alive_until,
        derive_attempts,
        energy_of,
        read_lives,
        training_ranks,
    )
    from outlay.ledger.reader import (
        Chunk,
        LastStatement,
        LedgerReader,
        RunLog,
        find_statements,
        last_committed_step,
        read_run,
        unsaved_steps,
        unsaved_text,
    )

__all__ = [
    "ACCOUNTS", "SUPERVISOR", "Attempt", "AttemptEnded", "AttemptStarted", "BudgetEvent",
    "BudgetStatement", "CheckpointCommitted", "Chunk", "EndStatus", "Gap", "GpuCount", "Heartbeat",
    "KnownRecord", "LastStatement", "LedgerReader", "Metric", "NodeInterval", "Note", "Payload",
    "Price", "PriceChanged", "PriceCorrected", "Record", "RunIdentity", "RunLog", "SegmentId",
    "SegmentLife", "SegmentWriter", "SlicesChanged", "SpanBegun", "SpanEnded", "Step", "Unknown",
    "alive_until", "append_to_ended", "attempts", "claim_identity", "codec", "corrections",
    "derive_attempts", "encode_line", "end_segment", "energy_of", "exact_gpus", "find_statements",
    "gpu_count_of", "kind_of", "last_committed_step", "ledger_dir", "price", "read_identity",
    "read_lives", "read_run", "reader", "records", "segment_paths", "segments", "training_ranks",
    "unsaved_steps", "unsaved_text",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in ("reader", "attempts"):  # In this order: attempts imports the reader.
            names = vars(importlib.import_module(f"outlay.ledger.{module}"))
            if name in names:
                globals()[name] = names[name]
                return names[name]
    raise AttributeError(f"module 'outlay.ledger' has no attribute {name!r}")
