"""kill -9 at random moments: acknowledged records are on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

import killed_writer
from outlay.ledger import AttemptStarted, Metric, Note, Record, RunLog, Step, read_run

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


def by_life(log: RunLog) -> dict[int, list[int]]:
    lives = {}
    for records in log.segments.values():
        header = records[0]
        assert isinstance(header, AttemptStarted)
        lives[int(header.tags["life"])] = recorded_numbers(records)
    return lives


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunLog, list[int]]:
    """A run whose every attempt was killed, and the last number each one acknowledged."""
    run_dir = tmp_path_factory.mktemp("killed")
    command = [sys.executable, killed_writer.__file__, str(run_dir), "a seed", str(KILLS)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return read_run(run_dir), json.loads(done.stdout)


def test_every_acknowledged_record_is_read_back(killed: tuple[RunLog, list[int]]) -> None:
    log, acknowledged = killed
    lives = by_life(log)
    for life, last in enumerate(acknowledged):
        assert lives[life][: last + 1] == list(range(last + 1))


def test_at_most_the_record_in_flight_is_unacknowledged(
    killed: tuple[RunLog, list[int]],
) -> None:
    log, acknowledged = killed
    lives = by_life(log)
    for life, last in enumerate(acknowledged):
        assert len(lives[life]) - (last + 1) in (0, 1)


def test_a_kill_leaves_at_most_a_torn_tail(killed: tuple[RunLog, list[int]]) -> None:
    # The kernel may stop in the middle of a write, where the line crosses a page.
    findings = killed[0].findings
    assert all(finding.message.startswith("the last line is torn") for finding in findings)
    assert len({finding.source for finding in findings}) == len(findings)


def test_the_kills_hit_different_moments(killed: tuple[RunLog, list[int]]) -> None:
    assert len(set(killed[1])) > KILLS / 10
