"""Logs of version 1 stay readable: a stored log against its known content."""

from __future__ import annotations

from pathlib import Path

from ledgers import numbered
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
    RunIdentity,
    SegmentId,
    SlicesChanged,
    SpanBegun,
    SpanEnded,
    Step,
    Unknown,
    encode_line,
    kind_of,
    last_committed_step,
    read_identity,
    read_run,
)

GOLDEN = Path(__file__).parents[1] / "data" / "ledger-v1"
T = 1_700_000_000_000_000_000
S = 1_000_000_000

IDENTITY = RunIdentity(run_id="5f0c", model="bert-base", name="first try", created_ns=T)
FIRST = SegmentId(start_ns=T, rank=0, host="node-1", pid=101)
SECOND = SegmentId(start_ns=T + 100 * S, rank=0, host="node-1", pid=202)

# Every kind, with every field that it has.
KILLED: list[KnownRecord] = [
    AttemptStarted(
        t_ns=T,
        run_id="5f0c",
        model="bert-base",
        name="first try",
        rank=0,
        world_size=2,
        pid=101,
        host="node-1",
        boot_id="b7",
        user="ada",
        launch="slurm-17-0",
        slurm_job="17",
        slurm_account="research",
        slurm_partition="gpu",
        instance_id="i-0",
        git_commit="abc123",
        versions={"python": "3.11.7", "outlay": "0.1.0"},
        tags={"team": "nlp", "Größe": "klein"},
        gpu="NVIDIA H100",
        gpus=8,
        price=Price(2_500_000, "EUR", "argument"),
        stopped_price=Price(100_000, "EUR", "stated"),
    ),
    SpanBegun(t_ns=T + S, name="training_prep"),
    SpanEnded(t_ns=T + 2 * S, begun=1),
    Step(
        t_ns=T + 4 * S,
        step=0,
        dur_ns=S,
        wait_ns=S // 2,
        tokens=4096,
        samples=8,
        comm_bytes=1 << 40,
        energy_mj=700_000,
        flops=10**20,
        count=1,
    ),
    Step(t_ns=T + 14 * S, step=1, dur_ns=10 * S, count=10),
    Metric(t_ns=T + 14 * S, name="accuracy", value=0.91, step=10),
    Metric(t_ns=T + 14 * S, name="loss", value="nan", step=10),
    SpanBegun(t_ns=T + 14 * S, name="checkpoint_save", overlapped=True),
    CheckpointCommitted(t_ns=T + 15 * S, step=10),
    PriceChanged(t_ns=T + 16 * S, price=Price(3_000_000, "EUR", "set_price"), gpus=8),
    BudgetEvent(t_ns=T + 17 * S, event="threshold", data={"limit": "cost", "share": 0.9}),
    Heartbeat(t_ns=T + 18 * S, gpu_busy_ns=9 * S, energy_mj=12),
    Note(t_ns=T + 19 * S, text='a "quoted" word\n', data={"lr": [0.1, None, True]}),
]
RESUMED: list[KnownRecord] = [
    AttemptStarted(t_ns=T + 100 * S, run_id="5f0c", rank=0, pid=202, host="node-1"),
    Gap(t_ns=T + 101 * S, lost=0, since_ns=T + 100 * S, reason="No space left on device"),
    AttemptEnded(t_ns=T + 102 * S, status="failed", reason="ValueError", exit_code=1),
]
LATER: list[KnownRecord] = [
    SlicesChanged(seq=4, t_ns=T + 104 * S, active=2, total=4, available=3),
    Payload(seq=5, t_ns=T + 105 * S, data={"job_name": "bert", "step_count": 7}),
    BudgetStatement(seq=6, t_ns=T + 106 * S, form=1, covers=6, state={"next_step": 11}),
    PriceCorrected(
        seq=7,
        t_ns=T + 107 * S,
        price=Price(2_000_000, "EUR", "corrected"),
        was=Price(20_000_000, "EUR"),
        by="ada",
        reason="typed 20",
    ),
]
FROM_THE_FUTURE = Unknown(seq=3, t_ns=T + 103 * S, kind="moon_phase", fields={"phase": "full"})


def test_a_log_of_version_1_reads_back_exactly() -> None:
    assert read_run(GOLDEN).segments == {
        FIRST: numbered(KILLED),
        SECOND: [*numbered(RESUMED), FROM_THE_FUTURE, *LATER],
    }


def test_findings_of_the_golden_log_are_unchanged() -> None:
    assert [(finding.line, finding.message) for finding in read_run(GOLDEN).findings] == [
        (0, "0 records were not written: No space left on device"),
        (14, "the last line is torn: 20 bytes without an end"),
    ]


def test_identity_and_last_checkpoint_of_the_golden_log_are_found() -> None:
    assert read_identity(GOLDEN) == IDENTITY
    assert last_committed_step(GOLDEN) == 10


def test_encoder_writes_the_bytes_of_the_golden_log() -> None:
    lines = (GOLDEN / "ledger" / FIRST.file_name).read_bytes().splitlines(keepends=True)
    assert [encode_line(record, seq) for seq, record in enumerate(KILLED)] == lines[:-1]


def test_golden_log_has_every_kind_of_record() -> None:
    assert {kind_of(record) for record in [*KILLED, *RESUMED, *LATER]} == {
        str(kind.__struct_config__.tag) for kind in KnownRecord.__args__
    }
