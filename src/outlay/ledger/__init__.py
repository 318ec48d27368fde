"""The run log: what happened in a run, as appended facts. It computes nothing from them."""

from outlay.ledger.attempts import (
    Attempt,
    SegmentLife,
    alive_until,
    derive_attempts,
    energy_of,
    training_ranks,
)
from outlay.ledger.codec import encode_line
from outlay.ledger.price import Price
from outlay.ledger.reader import Chunk, LedgerReader, RunLog, read_run
from outlay.ledger.records import (
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    CheckpointCommitted,
    EndStatus,
    Gap,
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
    kind_of,
)
from outlay.ledger.resume import last_committed_step
from outlay.ledger.run_file import RunIdentity, claim_identity, read_identity
from outlay.ledger.segments import SUPERVISOR, SegmentId, ledger_dir, segment_paths
from outlay.ledger.writer import SegmentWriter

__all__ = [
    "SUPERVISOR",
    "Attempt",
    "AttemptEnded",
    "AttemptStarted",
    "BudgetEvent",
    "CheckpointCommitted",
    "Chunk",
    "EndStatus",
    "Gap",
    "Heartbeat",
    "KnownRecord",
    "LedgerReader",
    "Metric",
    "Note",
    "Payload",
    "Price",
    "PriceChanged",
    "Record",
    "RunIdentity",
    "RunLog",
    "SegmentId",
    "SegmentLife",
    "SegmentWriter",
    "SlicesChanged",
    "SpanBegun",
    "SpanEnded",
    "Step",
    "Unknown",
    "alive_until",
    "claim_identity",
    "derive_attempts",
    "encode_line",
    "energy_of",
    "kind_of",
    "last_committed_step",
    "ledger_dir",
    "read_identity",
    "read_run",
    "segment_paths",
    "training_ranks",
]
