"""kill -9 at random moments: acknowledged records are on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

import killed_writer
from outlay.errors import Finding
from outlay.ledger import AttemptStarted, Metric, Note, Record, Step, read_run

KILLS = 200


def recorded_numbers(records: Sequence[Record]) -> list[int]:
    """Return the writer's numbers in the order of their records."""
    numbers = []
    for record in records:
        match record:
            case Step():
                numbers.append(record.tokens)
            case Metric():
                numbers.append(int(record.number))
            case Note():
                numbers.append(int(record.data["number"]))
            case _:
                assert isinstance(record, AttemptStarted)
    return numbers


def numbers_by_life(records_by_segment: Iterable[Sequence[Record]]) -> dict[int, list[int]]:
    lives = {}
    for records in records_by_segment:
        header = records[0]
        assert isinstance(header, AttemptStarted)
        lives[int(header.tags["life"])] = recorded_numbers(records)
    return lives


@dataclass(frozen=True)
class Killed:
    """What writers recorded and the last number that each acknowledged, and all findings."""

    recorded: dict[int, list[int]]
    acknowledged: list[int]
    findings: list[Finding]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Runs whose every attempt was killed."""
    root = tmp_path_factory.mktemp("killed")
    command = [sys.executable, killed_writer.__file__, str(root), "a seed", str(KILLS)]
    done = subprocess.run(command, capture_output=True, check=True)
    logs = [read_run(run_dir) for run_dir in sorted(root.iterdir())]
    return Killed(
        numbers_by_life(records for log in logs for records in log.segments.values()),
        json.loads(done.stdout),
        [finding for log in logs for finding in log.findings],
    )


def test_every_acknowledged_record_is_read_back(killed: Killed) -> None:
    for life, last in enumerate(killed.acknowledged):
        assert killed.recorded[life][: last + 1] == list(range(last + 1))


def test_at_most_the_record_in_flight_is_unacknowledged(killed: Killed) -> None:
    for life, last in enumerate(killed.acknowledged):
        assert len(killed.recorded[life]) - (last + 1) in (0, 1)


def test_a_kill_leaves_at_most_a_torn_tail(killed: Killed) -> None:
    # The kernel may stop in the middle of a write, where the line crosses a page.
    findings = killed.findings
    assert all(finding.message.startswith("the last line is torn") for finding in findings)
    assert len({finding.source for finding in findings}) == len(findings)


def test_kills_hit_different_moments(killed: Killed) -> None:
    assert len(set(killed.acknowledged)) > KILLS / 10
