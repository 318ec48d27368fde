"""Reading only the boundary records of segments gives the same as folding whole logs."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers import scratch_dir
from outlay.ledger import (
    SUPERVISOR,
    AttemptEnded,
    AttemptStarted,
    Heartbeat,
    KnownRecord,
    LedgerReader,
    Payload,
    Price,
    PriceChanged,
    SegmentId,
    SegmentLife,
    SlicesChanged,
    Step,
    encode_line,
    end_segment,
    ledger_dir,
    read_lives,
)
from outlay.ledger import attempts as lives
from outlay.ledger.codec import Decoded, decode_block


def folded(run_dir: Path) -> dict[SegmentId, SegmentLife]:
    found: dict[SegmentId, SegmentLife] = {}
    for chunk in LedgerReader(run_dir).poll():
        found.setdefault(chunk.segment, SegmentLife(chunk.segment)).fold(chunk.records)
    return found


def segment(chance: random.Random, rank: int, steps: int) -> list[KnownRecord]:
    t_ns = 1000 + rank
    records: list[KnownRecord] = [
        AttemptStarted(t_ns=t_ns, rank=rank, pid=rank + 7, price=Price(5), gpus=2)
    ]
    for number in range(steps):
        t_ns += chance.randint(1, 9)
        records.append(Step(t_ns=t_ns, step=number, dur_ns=1, tokens=chance.randint(0, 99)))
        if chance.random() < 0.05:
            price = Price(chance.randint(0, 99))
            records.append(PriceChanged(t_ns=t_ns, price=price, gpus=chance.randint(1, 8)))
        if chance.random() < 0.05:
            records.append(SlicesChanged(t_ns=t_ns, active=1, total=2, available=1))
        if chance.random() < 0.05:
            records.append(Heartbeat(t_ns=t_ns + 1))
        if chance.random() < 0.02:
            records.append(Payload(t_ns=t_ns, data={"kind": 'x_changed","', "y": 1}))
    if chance.random() < 0.5:
        records.append(AttemptEnded(t_ns=t_ns + 3, status="failed"))
    return records


def written(records: list[KnownRecord]) -> bytes:
    return b"".join(encode_line(record, seq) for seq, record in enumerate(records))


@given(
    seed=st.integers(0, 2**63), steps=st.lists(st.integers(0, 300), min_size=1, max_size=3),
    damage=st.sampled_from(["none", "a byte", "the tail", "the head", "a copy"]),
)  # fmt: skip
def test_lives_are_those_of_the_whole_fold(seed: int, steps: list[int], damage: str) -> None:
    chance = random.Random(seed)
    with scratch_dir() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lives, "WHOLE_BYTES", 2000)
        patch.setattr(lives, "TAIL_BYTES", 1000)
        patch.setattr(lives, "_BLOCK_BYTES", 777)
        run_dir = Path(directory)
        ledger_dir(run_dir).mkdir()
        for rank, count in enumerate(steps):
            content = bytearray(written(segment(chance, rank, count)))
            if damage == "a byte":
                content[chance.randrange(len(content))] ^= 1
            elif damage == "the tail":
                del content[-chance.randint(1, len(content) - 1) :]
            elif damage == "the head":
                del content[: chance.randint(1, 300)]
            name = SegmentId(1000 + rank, rank, "", rank + 7).file_name
            (ledger_dir(run_dir) / name).write_bytes(content)
            if damage == "a copy":
                half = content.find(b"\n", len(content) // 2) + 1
                (ledger_dir(run_dir) / f"copy-of-{name}").write_bytes(content[:half])
        expected = folded(run_dir)
        assert {life.segment: life for life in read_lives(run_dir)} == expected
        assert times(read_lives(run_dir, times_only=True)) == times(expected.values())


def times(found: Iterable[SegmentLife]) -> list[tuple[SegmentId, int, str]]:
    """Return when each process began, gave its last sign and ended."""
    return sorted((life.segment, life.last_sign_ns, str(life.end)) for life in found)


def test_of_a_long_log_the_steps_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [Step(t_ns=2 + n, step=n, dur_ns=1) for n in range(20_000)]
    change = PriceChanged(t_ns=500, price=Price(9), gpus=3)
    end = AttemptEnded(t_ns=30_000, status="completed")
    records: list[KnownRecord] = [
        AttemptStarted(t_ns=1, pid=1),
        *steps[:500],
        change,
        *steps[500:],
        end,
    ]
    path = ledger_dir(tmp_path) / SegmentId(1, 0, "", 1).file_name
    path.parent.mkdir()
    path.write_bytes(written(records))
    decoded: list[int] = []

    def counting(block: bytes) -> Decoded:
        found = decode_block(block)
        decoded.append(len(found.records))
        return found

    monkeypatch.setattr(lives, "decode_block", counting)
    (life,) = read_lives(tmp_path)
    assert life.end is not None
    assert (life.end.status, life.last_sign_ns) == ("completed", 30_000)
    assert [(paid.price, paid.gpus) for paid in life.prices] == [(Price(9), 3)]
    assert sum(decoded) < 2000


def test_a_segment_is_ended_once_for_a_writer_that_died(tmp_path: Path) -> None:
    path = tmp_path / "ledger" / SegmentId(1, SUPERVISOR, "", 1).file_name
    path.parent.mkdir()
    begun = AttemptStarted(t_ns=1, rank=SUPERVISOR, pid=1)
    path.write_bytes(written([begun, Heartbeat(t_ns=5)]) + b'{"v":1,"se')
    assert end_segment(path, AttemptEnded(t_ns=9, status="failed"))
    assert not end_segment(path, AttemptEnded(t_ns=99, status="completed"))
    (life,) = read_lives(tmp_path)
    assert life.end is not None
    assert (life.end.t_ns, life.end.status, life.last_sign_ns) == (9, "failed", 9)
