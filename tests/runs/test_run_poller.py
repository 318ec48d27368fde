"""The poller of runs: a log is opened once, however often it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import outlay
from outlay.clock import ManualClock
from outlay.goodput import follower
from outlay.ledger import LedgerReader
from outlay.runs.run_poller import RunPoller
from outlay.store import open_store

MINUTE = 60 * 10**9


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the directories of the logs that are read from their begin."""
    directories: list[Path] = []

    class Counted(LedgerReader):
        def __init__(self, run_dir: Path, **options: object) -> None:
            directories.append(run_dir)
            super().__init__(run_dir, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(follower, "LedgerReader", Counted)
    return directories


@pytest.mark.parametrize("cached", [False, True])
def test_a_live_run_is_followed_and_its_log_read_once(
    tmp_path: Path, clock: ManualClock, opened: list[Path], *, cached: bool
) -> None:
    poller, costs = RunPoller(open_store(), clock=clock, cached=cached), []
    with outlay.run("m", dir=tmp_path / "run", price="60 USD/h", clock=clock) as run:
        for _ in range(3):
            with run.step():
                clock.advance(MINUTE // 4)
            (reading,) = poller.running()
            costs.append(reading.figures.cost)
    assert [str(cost) for cost in costs] == ["0.25 USD", "0.50 USD", "0.75 USD"]
    assert opened == [tmp_path / "run"]


@pytest.mark.parametrize("cached", [False, True])
def test_a_reader_that_nobody_asks_for_is_dropped(
    tmp_path: Path, clock: ManualClock, *, cached: bool
) -> None:
    poller = RunPoller(open_store(), clock=clock, cached=cached)
    with outlay.run("m", dir=tmp_path / "run", clock=clock):
        poller.running()
        assert poller.open_readers == 1
    poller.running()
    clock.advance(2 * MINUTE)
    poller.running()
    clock.advance(2 * MINUTE)
    assert poller.running() == []
    assert poller.open_readers == 0


def test_only_a_cached_reading_is_of_the_present(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store()
    with outlay.run("m", dir=tmp_path / "run", clock=clock) as run:
        run.metric("loss", 1)
        last_ns = clock.wall_ns()
        clock.advance(10 * 10**9)
        (present,), (last,) = (
            RunPoller(store, clock=clock, cached=cached).running() for cached in (True, False)
        )
    assert (present.t_ns, last.t_ns) == (last_ns + 10 * 10**9, last_ns)
