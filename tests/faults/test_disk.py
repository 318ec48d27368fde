"""Disks that fail: training continues, losses are counted and recorded later."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlay
from ledgers import START_NS, Segment, scratch_dir
from outlay.clock import ManualClock
from outlay.ledger import (
    AttemptEnded,
    AttemptStarted,
    Gap,
    LedgerReader,
    Metric,
    SegmentWriter,
    Step,
    ledger_dir,
    read_run,
)
from outlay.ledger import writer as writer_module
from system_parts import missing

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount small file systems in memory; needs root."""
    mounted: list[Path] = []

    def mount_tmpfs(options: str) -> Path:
        place = tmp_path / f"disk-{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            missing(f"cannot mount a tmpfs, which needs root: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount_tmpfs
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave no free byte and return the file that took them."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(bytes(4096)):
            pass
    assert shutil.disk_usage(disk).free == 0
    return ballast


def steps_in(run_dir: Path) -> list[int]:
    return [record.step for record in read_run(run_dir).records if isinstance(record, Step)]


def gaps_in(run_dir: Path) -> list[Gap]:
    return [record for record in read_run(run_dir).records if isinstance(record, Gap)]


def steps_until_lost(run: outlay.Run) -> int:
    """Run steps until some cannot be written, and a few more; return how many ran."""
    ran = 0
    while run.recorder.writer.lost < 5:
        with run.step():
            ran += 1
    return ran


@pytest.fixture
def healed(mount: Mount, caplog: pytest.LogCaptureFixture) -> tuple[Path, int, int]:
    """A run whose disk was full for a while: its directory, its steps, and how many were lost."""
    disk = mount("size=256k")
    with outlay.run("m", dir=disk / "run") as run:
        ballast = fill(disk)
        ran = steps_until_lost(run)
        lost = run.recorder.writer.lost
        ballast.unlink()
        with run.step():
            ran += 1
    assert [record.name for record in caplog.records] == ["outlay"]  # It said so once.
    return disk / "run", ran, lost


def test_a_full_disk_loses_only_what_did_not_fit(healed: tuple[Path, int, int]) -> None:
    run_dir, ran, lost = healed
    assert steps_in(run_dir) == [*range(ran - 1 - lost), ran - 1]


def test_after_a_full_disk_a_gap_counts_the_lost_records(healed: tuple[Path, int, int]) -> None:
    run_dir, _, lost = healed
    assert [gap.lost for gap in gaps_in(run_dir)] == [lost]


def test_a_full_disk_is_reported_and_explains_every_missing_record(
    healed: tuple[Path, int, int],
) -> None:
    messages = [finding.message for finding in read_run(healed[0]).findings]
    assert not [message for message in messages if "missing in the middle" in message]
    assert len([message for message in messages if "records were not written" in message]) == 1


def test_the_summary_counts_what_was_lost(mount: Mount) -> None:
    disk = mount("size=256k")
    with outlay.run("m", dir=disk / "run") as run:
        fill(disk)
        steps_until_lost(run)
        assert run.summary()["outlay/lost_records"] == 5


def test_a_run_may_start_on_a_full_disk_and_record_when_there_is_space(
    mount: Mount, clock: ManualClock
) -> None:
    disk = mount("size=64k")
    ballast = fill(disk)
    with outlay.run("m", dir=disk / "run", clock=clock) as run:
        with run.step():
            pass
        ballast.unlink()
        clock.sleep(2)
        with run.step():
            pass
    records = read_run(disk / "run").records
    assert [type(record) for record in records] == [AttemptStarted, Step, Gap, AttemptEnded]
    assert gaps_in(disk / "run")[0].lost == 1


def test_a_read_only_disk_never_raises_and_is_recorded_to_once_writable(
    mount: Mount, clock: ManualClock
) -> None:
    disk = mount("size=64k,ro")
    with outlay.run("m", dir=disk / "run", clock=clock) as run:
        for _ in range(3):
            with run.step():
                pass
            run.metric("loss", 1.0)
            run.checkpoint_committed()
        assert run.recorder.writer.lost == 9
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        clock.sleep(2)
        run.heartbeat()
    assert [gap.lost for gap in gaps_in(disk / "run")] == [9]


def test_the_last_checkpoint_is_found_on_a_read_only_disk(mount: Mount) -> None:
    disk = mount("size=64k")
    Segment().step(1).step(1).checkpoint().write(disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with outlay.run("m", dir=disk / "run") as run:
        assert run.resume_step == 2


def test_a_deleted_directory_is_recreated_at_the_next_sync(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run") as run:
        for _ in run.steps(range(4)):
            pass
        shutil.rmtree(tmp_path / "run")
        run.checkpoint_committed()
        run.metric("accuracy", 0.9)
    records = read_run(tmp_path / "run").records
    assert {type(record) for record in records} == {AttemptStarted, Gap, Metric, AttemptEnded}
    assert [gap.lost for gap in gaps_in(tmp_path / "run")] == [5]


def test_a_deleted_directory_is_reported_in_one_finding(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run") as run:
        with run.step():
            pass
        shutil.rmtree(tmp_path / "run")
    (finding,) = read_run(tmp_path / "run").findings
    assert finding.message.startswith("1 records were not written: the segment file was deleted")


def test_the_end_of_a_run_is_recorded_though_its_directory_was_deleted(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run"):
        shutil.rmtree(tmp_path / "run")
    assert isinstance(read_run(tmp_path / "run").records[-1], AttemptEnded)


def test_a_follower_reads_on_in_a_recreated_file(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path / "run") as run:
        for _ in run.steps(range(50)):
            pass
        reader = LedgerReader(tmp_path / "run")
        assert sum(len(chunk.records) for chunk in reader.poll()) == 51
        shutil.rmtree(tmp_path / "run")
        run.checkpoint_committed()
        run.metric("accuracy", 0.9)
        later = [record for chunk in reader.poll() for record in chunk.records]
        assert [type(record) for record in later] == [Gap, Metric]


class FlakyOs:
    """The os module with scripted writes: each fails, or takes only so many bytes."""

    def __init__(self, script: list[int | None]) -> None:
        self.script = script

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: bytes) -> int:
        """Write as many bytes as the script's next entry says; None raises."""
        limit = self.script.pop(0) if self.script else len(data)
        if limit is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data[:limit])


WHOLE = 10**6
outcomes = st.none() | st.integers(min_value=1, max_value=300) | st.just(WHOLE)


@given(script=st.lists(outcomes, max_size=12), appended=st.integers(min_value=14, max_value=20))
@settings(max_examples=300, deadline=None)
def test_however_the_disk_fails_records_and_losses_add_up(
    script: list[int | None], appended: int
) -> None:
    clock = ManualClock(START_NS)
    header = Segment()
    with scratch_dir() as folder:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer_module, "os", FlakyOs([WHOLE, *script]))
            path = ledger_dir(Path(folder)) / header.id.file_name
            writer = SegmentWriter(path, header.header, clock)
            for number in range(appended):
                writer.append(Step(t_ns=clock.wall_ns(), step=number, dur_ns=1))
                clock.sleep(1)
        log = read_run(Path(folder))
    steps = [record for record in log.records if isinstance(record, Step)]
    assert len(steps) + writer.lost == appended
    assert sum(gap.lost for gap in log.records if isinstance(gap, Gap)) == writer.lost
    assert not [finding for finding in log.findings if "missing" in finding.message]


def test_a_record_that_is_not_json_is_counted_and_never_raises(tmp_path: Path) -> None:
    with outlay.run("m", dir=tmp_path) as run:
        run.note("a thought", of=object())
        run.note("half a character: \ud800")
        run.metric("loss", 1.0)
    assert [gap.lost for gap in gaps_in(tmp_path)] == [2]
    assert run.recorder.writer.lost == 2


def test_a_full_disk_neither_lifts_a_budget_nor_crashes_its_training(mount: Mount) -> None:
    disk = mount("size=256k")
    with outlay.run("m", dir=disk / "run", budget=outlay.iso_tokens(5_000)) as run:
        ran = 0
        for _ in run.steps(range(10_000), tokens=10):
            ran += 1
            if ran == 100:
                fill(disk)
        assert run.recorder.writer.lost > 0
        assert run.stop_reason is not None
    assert ran == 500
