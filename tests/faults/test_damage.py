"""Damaged files: a torn tail, a flipped bit, a lost header; everything else is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from ledgers import Segment, numbered, to_lines
from outlay.ledger import (
    LedgerReader,
    Note,
    SegmentId,
    Step,
    codec,
    encode_line,
    ledger_dir,
    read_run,
)
from outlay.ledger.codec import decode_block
from outlay.ledger.reader import BLOCK_BYTES

STORY = Segment().step(1, tokens=5).step(2, tokens=6).checkpoint().step(3, wait=0.5).end()
LINES = to_lines(STORY.records)
MIDDLE = 2


def test_a_last_record_cut_anywhere_is_one_finding_and_nothing_else_is_lost(
    tmp_path: Path,
) -> None:
    path = STORY.write(tmp_path)
    whole, last = path.read_bytes(), LINES[-1]
    for kept in range(1, len(last)):
        path.write_bytes(whole[: len(whole) - len(last) + kept])
        log = read_run(tmp_path)
        assert log.records == numbered(STORY.records)[:-1]
        assert [(f.line, f.message) for f in log.findings] == [
            (len(LINES), f"the last line is torn: {kept} bytes without an end")
        ]


def test_a_last_record_that_is_missing_altogether_is_no_finding(tmp_path: Path) -> None:
    STORY.write(tmp_path).write_bytes(b"".join(LINES[:-1]))
    assert read_run(tmp_path).findings == []


@pytest.mark.parametrize("bit", range(8))
def test_one_flipped_bit_is_one_finding_and_nothing_else_is_lost(tmp_path: Path, bit: int) -> None:
    # "J" and "*" are one bit away from a newline, which would make two bad lines of one.
    assert not set(b"J*") & set(LINES[MIDDLE])
    path = STORY.write(tmp_path)
    whole, start = path.read_bytes(), sum(map(len, LINES[:MIDDLE]))
    others = [r for r in numbered(STORY.records) if r.seq != MIDDLE]
    for offset in range(start, start + len(LINES[MIDDLE]) - 1):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << bit
        path.write_bytes(damaged)
        log = read_run(tmp_path)
        assert [finding.line for finding in log.findings] == [MIDDLE + 1], offset
        assert log.records == others, offset


@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_newline_is_one_finding_and_loses_neither_line(tmp_path: Path, bit: int) -> None:
    path = STORY.write(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[sum(map(len, LINES[: MIDDLE + 1])) - 1] ^= 1 << bit
    path.write_bytes(damaged)
    log = read_run(tmp_path)
    assert [finding.line for finding in log.findings] == [MIDDLE + 1]
    assert log.records == numbered(STORY.records)


def test_a_record_written_behind_a_torn_one_is_salvaged() -> None:
    torn_and_whole = LINES[1][:30] + LINES[2]
    decoded = decode_block(torn_and_whole)
    assert decoded.records == [numbered(STORY.records)[2]]
    assert len(decoded.complaints) == 1


def test_lost_middle_line_is_reported_as_missing(tmp_path: Path) -> None:
    path = STORY.write(tmp_path)
    path.write_bytes(b"".join(LINES[:MIDDLE] + LINES[MIDDLE + 1 :]))
    (finding,) = read_run(tmp_path).findings
    assert finding.message == "1 records are missing in the middle"


def test_a_damaged_first_record_leaves_the_rest_under_the_files_name(tmp_path: Path) -> None:
    path = STORY.write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"attempt_started", b"attempt_startle", 1))
    log = read_run(tmp_path)
    assert log.segments == {STORY.id: numbered(STORY.records)[1:]}
    assert len(log.findings) == 1


def test_a_damaged_first_record_in_a_renamed_file_is_dated_by_the_next(tmp_path: Path) -> None:
    path = STORY.write(tmp_path, name="renamed.jsonl")
    path.write_bytes(path.read_bytes().replace(b"attempt_started", b"attempt_startle", 1))
    first_step = STORY.records[1]
    (segment,) = read_run(tmp_path).segments
    assert segment == SegmentId(start_ns=first_step.t_ns, host="renamed.jsonl")


def test_a_file_of_zeros_is_a_finding(tmp_path: Path) -> None:
    STORY.write(tmp_path).write_bytes(bytes(10_000))
    assert len(read_run(tmp_path).findings) == 1


def test_zeros_at_the_end_lose_nothing_before_them(tmp_path: Path) -> None:
    path = STORY.write(tmp_path)
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert read_run(tmp_path).records == numbered(STORY.records)


def long_line(run_dir: Path) -> Segment:
    """Write a log whose second line is longer than what is read at once."""
    story = Segment()
    story.add(Note(t_ns=story.now_ns, text="x" * (2 * BLOCK_BYTES))).step(1).end().write(run_dir)
    return story


def test_a_line_longer_than_a_block_is_read_whole(tmp_path: Path) -> None:
    story, log = long_line(tmp_path), read_run(tmp_path)
    assert log.records == numbered(story.records)
    assert log.findings == []


def test_a_long_line_that_is_torn_is_one_finding_and_read_once_it_is_whole(tmp_path: Path) -> None:
    story = long_line(tmp_path)
    path = ledger_dir(tmp_path) / story.id.file_name
    whole = path.read_bytes()
    path.write_bytes(whole[: 2 * BLOCK_BYTES])
    reader = LedgerReader(tmp_path)
    torn = [record for chunk in reader.poll() for record in chunk.records]
    assert [finding.line for finding in reader.findings()] == [2]
    with path.open("ab") as stream:
        stream.write(whole[2 * BLOCK_BYTES :])
    rest = [record for chunk in reader.poll() for record in chunk.records]
    assert [*torn, *rest] == numbered(story.records)
    assert reader.findings() == []


def test_line_of_another_version_is_refused_at_any_position() -> None:
    newer = encode_line(Step(t_ns=1, step=1, dur_ns=1), 0).replace(b'{"v":1', b'{"v":2')
    for block in (newer, newer + b"junk\n"):
        decoded = decode_block(block)
        assert decoded.records == []
        assert len(decoded.complaints) == block.count(b"\n")


def test_a_new_attempt_never_continues_a_torn_file(tmp_path: Path) -> None:
    path = STORY.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    torn = path.read_bytes()
    with outlay.run("m", dir=tmp_path):
        pass
    assert path.read_bytes() == torn
    assert len(list(ledger_dir(tmp_path).glob("*.jsonl"))) == 2


def test_a_sound_block_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits of checksums and times are no long numbers: one such line would slow all others."""
    monkeypatch.setattr(codec, "_decode_each", lambda _: pytest.fail("line by line"))
    segment = Segment()
    for number in range(5000):
        segment.step(0.01, tokens=number)
    assert len(decode_block(b"".join(to_lines(segment.records))).records) == 5001
