"""Any record of any kind, for laws that hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    BudgetEvent,
    BudgetStatement,
    CheckpointCommitted,
    Gap,
    Heartbeat,
    KnownRecord,
    Metric,
    Note,
    Payload,
    Price,
    PriceChanged,
    PriceCorrected,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
)

instants = st.integers(min_value=0, max_value=2**62 - 1)
counts = st.integers(min_value=0, max_value=2**53)
texts = st.text(max_size=20)
labels = st.dictionaries(texts, texts, max_size=3)
# What JSON keeps as it is: no NaN, no tuples, text as keys.
scalars = (
    st.none() | st.booleans() | counts | texts | st.floats(allow_nan=False, allow_infinity=False)
)
data = st.dictionaries(
    texts, st.recursive(scalars, lambda inner: st.lists(inner, max_size=3)), max_size=3
)
gpu_counts = counts | st.builds("{}/{}".format, st.integers(0, 999), st.integers(1, 999))
prices = st.builds(Price, micros_per_hour=counts, currency=texts, source=texts)
statuses = st.sampled_from(["completed", "failed", "interrupted", "terminated", "preempted"])
metric_values = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    ["nan", "inf", "-inf"]
)

_FIELDS: dict[type[KnownRecord], dict[str, st.SearchStrategy[Any]]] = {
    AttemptStarted: {
        **dict.fromkeys(("run_id", "model", "name", "host", "boot_id", "user", "launch"), texts),
        **dict.fromkeys(("slurm_job", "slurm_account", "slurm_partition", "instance_id"), texts),
        **dict.fromkeys(("git_commit", "gpu", "gpus_source", "init_start", "slurm_restart"), texts),
        **dict.fromkeys(("rank", "world_size", "pid", "nodes", "node"), counts),
        **dict.fromkeys(("gpus", "node_gpus"), gpu_counts),
        **dict.fromkeys(("process_start_ns", "agent_start_ns"), instants),
        **dict.fromkeys(("since_boot_ns", "queued_ns"), instants),
        **dict.fromkeys(("versions", "tags"), labels),
        "config": data,
        "command": st.lists(texts, max_size=3).map(tuple),
        **dict.fromkeys(("price", "stopped_price", "stopped_machine_price"), st.none() | prices),
    },
    AttemptEnded: {
        "status": statuses,
        "reason": texts,
        "exit_code": st.none() | st.integers(min_value=-128, max_value=255),
    },
    SpanBegun: {"name": texts, "overlapped": st.booleans()},
    SpanEnded: {"begun": counts},
    Step: dict.fromkeys(
        ("step", "dur_ns", "wait_ns", "tokens", "samples", "comm_bytes", "energy_mj"), counts
    )
    | {
        "flops": st.integers(min_value=0, max_value=10**30),
        "count": st.integers(min_value=1, max_value=2**53),
    },
    Metric: {"name": texts, "value": metric_values, "step": st.none() | counts},
    CheckpointCommitted: {"step": st.integers(min_value=-1, max_value=2**53)},
    PriceChanged: {"price": prices, "gpus": gpu_counts},
    PriceCorrected: {
        "price": prices,
        "was": st.none() | prices,
        "by": texts,
        "reason": texts,
    },
    SlicesChanged: dict.fromkeys(("active", "total", "available"), counts),
    BudgetEvent: {"event": texts, "data": data},
    BudgetStatement: {"form": counts, "covers": counts, "state": data},
    Heartbeat: dict.fromkeys(("gpu_busy_ns", "energy_mj"), counts),
    Note: {"text": texts, "data": data},
    Payload: {"data": data},
    Gap: {"lost": counts, "since_ns": instants, "reason": texts},
}


def fields_of(kind: type[KnownRecord]) -> set[str]:
    """Return the names of the fields that are drawn for a kind."""
    return {"seq", "t_ns", *_FIELDS[kind]}


def records_of(kind: type[KnownRecord]) -> st.SearchStrategy[KnownRecord]:
    """Return every record of one kind."""
    return st.builds(kind, t_ns=instants, **_FIELDS[kind])


KINDS = list(_FIELDS)
records = st.one_of([records_of(kind) for kind in KINDS])
steps = records_of(Step)
later = st.one_of([records_of(kind) for kind in KINDS if kind not in (AttemptStarted, Gap)])
"""Any record after a segment's first, but for gaps, which claim that records before were lost."""
